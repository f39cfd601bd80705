"""Settings of the drift checks: what is compared with the release's reference, and what counts as drift."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from data_contracts.config import Config


class Check(Config):
    """One figure of the sessions, in the window against the reference.

    `mix`: shares of categories (chi-squared test; Cramer's V). `rate`: share of ones (Fisher's exact test; difference
    of the shares). `shape`: distribution of a number (Kolmogorov-Smirnov test; its statistic, 0 to 1).
    """

    name: str = Field(min_length=1, description="name of the check and of its gate")
    column: str = Field(min_length=1, description="column of the sessions' table")
    kind: Literal["mix", "rate", "shape"] = Field(description="what is compared, and by which test")
    effect: float = Field(gt=0, le=1, description="the least effect that counts as drift")
    direction: Literal["any", "rise", "fall"] = Field(default="any", description="which change matters")

    @model_validator(mode="after")
    def _mix_has_no_direction(self) -> Self:
        if self.kind == "mix" and self.direction != "any":
            raise ValueError(f"check {self.name}: a mix neither rises nor falls: set direction = 'any'")
        return self


DEFAULT_CHECKS: tuple[Check, ...] = (
    Check(name="horizon_mix", column="horizon", kind="mix", effect=0.2),
    Check(name="prompt_length", column="prompt_tokens", kind="shape", effect=0.25),
    Check(name="turns", column="turns", kind="shape", effect=0.25),
    Check(name="tokens", column="tokens", kind="shape", effect=0.25),
    Check(name="tool_errors", column="tool_error_rate", kind="shape", effect=0.2, direction="rise"),
    Check(name="success", column="success", kind="rate", effect=0.1, direction="fall"),
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
    windows: int = Field(default=3, ge=1, description="n: windows looked back on")
    drifted: int = Field(default=2, ge=1, description="k: drifted windows of those n that start a new run")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.drifted > self.windows:
            raise ValueError(f"drifted = {self.drifted} of windows = {self.windows} can never be: lower drifted")
        names = [check.name for check in self.checks]
        if len(set(names)) != len(names) or "missing" in names:
            raise ValueError(f"checks {names}: give each its own name, and none the name 'missing'")
        return self
