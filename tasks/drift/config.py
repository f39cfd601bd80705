"""Settings of the drift checks: what is compared with the release's reference, and what counts as drift."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from data_contracts.config import Config

Kind = Literal["mix", "rate", "shape", "mean", "bag", "cloud", "calibration"]
MISSING = "missing"
"""Name of the check of the share of missing values."""


class Check(Config):
    """One figure of the sessions, in the window against the reference.

    `mix`: shares of categories (chi-squared test; Cramer's V). `rate`: share of ones (Fisher's exact test; difference
    of the shares). `shape`: distribution of a number (Kolmogorov-Smirnov test; its statistic, 0 to 1). `mean`: mean of
    a number (Welch's test; difference of the means). By permutation of the sessions: `bag`: mean shares of names in
    lists (total variation). `cloud`: what texts are about (energy distance of their embeddings as a share of the
    greatest there can be, Szekely and Rizzo 2013). `calibration`: rise of the calibration error of predictions of
    success (beyond what chance alone makes of so few sessions).
    """

    name: str = Field(min_length=1, description="name of the check and of its gate")
    column: str = Field(min_length=1, description="column of the sessions' table")
    kind: Kind = Field(description="what is compared, and by which test")
    effect: float = Field(gt=0, le=1, description="the least effect that counts as drift")
    direction: Literal["any", "rise", "fall"] = Field(default="any", description="which change matters")
    optional: bool = Field(
        default=False,
        description="a window may PASS without its verdict, and its column may be missing altogether",
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it reads."""
        return (self.column, "residual") if self.kind == "calibration" else (self.column,)

    @model_validator(mode="after")
    def _directed(self) -> Self:
        if self.kind in ("mix", "bag", "cloud") and self.direction != "any":
            raise ValueError(f"check {self.name}: a {self.kind} neither rises nor falls: set direction = 'any'")
        if self.kind == "calibration" and (self.direction, self.column) != ("rise", "predicted"):
            raise ValueError(f"check {self.name}: calibration is of 'predicted': set column so, and direction = 'rise'")
        return self


def _optional(name: str, column: str, kind: Kind, effect: float, direction: Literal["any", "rise"] = "any") -> Check:
    return Check(name=name, column=column, kind=kind, effect=effect, direction=direction, optional=True)


DEFAULT_CHECKS: tuple[Check, ...] = (
    Check(name="prompt_length", column="prompt_tokens", kind="shape", effect=0.25),
    Check(name="turns", column="turns", kind="shape", effect=0.25),
    Check(name="tokens", column="tokens", kind="shape", effect=0.25),
    Check(name="tool_mix", column="tools", kind="bag", effect=0.15),
    Check(name="tool_errors", column="tool_error_rate", kind="shape", effect=0.2, direction="rise"),
    Check(name="truncation", column="truncated", kind="rate", effect=0.1, direction="rise"),
    Check(name="unserved", column="unserved", kind="rate", effect=0.05, direction="rise"),
    Check(name="success", column="success", kind="rate", effect=0.1, direction="fall"),
    _optional("horizon_mix", "horizon", "mix", 0.2),
    _optional("tools_offered", "tools_offered", "bag", 0.1),
    _optional("prompt_symbols", "prompt_symbols", "shape", 0.25),
    _optional("prompt_variety", "prompt_variety", "shape", 0.25),
    _optional("prompt_meaning", "prompt", "cloud", 0.05),
    _optional("reward_process", "reward_process", "shape", 0.25),
    _optional("reward_format", "reward_format", "shape", 0.25),
    _optional("reward_cost", "reward_cost", "shape", 0.25),
    _optional("calibration", "predicted", "calibration", 0.05, "rise"),
    _optional("calibration_shift", "residual", "mean", 0.1),
    _optional("disagreement", "disagreement", "rate", 0.1, "rise"),
    _optional("mismatch", "mismatch", "shape", 0.25, "rise"),
)


class DriftConfig(Config):
    """When a window of live sessions has drifted from the release's reference, and when that starts a new run."""

    checks: tuple[Check, ...] = Field(default=DEFAULT_CHECKS, description="what is compared")
    alpha: float = Field(default=0.01, gt=0, lt=0.5, description="chance of any false alarm in a window (Holm)")
    minimum: int = Field(
        default=50, ge=5, description="least values of a figure, in window and reference, for a verdict"
    )
    missing_effect: float = Field(
        default=0.05, gt=0, le=1, description="rise of the share of missing values that counts"
    )
    permutations: int = Field(default=4999, ge=99, description="draws of a permutation test; fewer where it is clear")
    window_sessions: int = Field(default=200, ge=5, description="ended sessions that make a window of live traffic")
    window_hours: float | None = Field(
        default=None, gt=0, description="cut windows by time instead, so many hours each, also those with few sessions"
    )
    settle_minutes: float = Field(
        default=30.0, gt=0, description="a session without outcome has ended when nothing came of it for so long"
    )
    windows: int = Field(default=3, ge=1, description="n: windows looked back on")
    drifted: int = Field(default=2, ge=1, description="k: drifted windows of those n that open an episode")
    quiet: int = Field(default=3, ge=1, description="m: windows in a row that PASS, after which an episode is over")
    cooldown_hours: float = Field(default=24.0, ge=0, description="after an episode, until another one may open")
    candidates: int = Field(default=500, ge=1, description="sessions of an episode kept as candidates for problems")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.drifted > self.windows:
            raise ValueError(f"drifted = {self.drifted} of windows = {self.windows} can never be: lower drifted")
        names = [check.name for check in self.checks]
        if len(set(names)) != len(names) or MISSING in names:
            raise ValueError(f"checks {names}: give each its own name, and none the name '{MISSING}'")
        if (len(names) + 1) / (self.permutations + 1) >= self.alpha:
            least = int((len(names) + 1) / self.alpha)
            raise ValueError(f"{self.permutations} permutations can never show p < alpha: set permutations = {least}")
        return self
