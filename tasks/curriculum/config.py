"""Settings of the curriculum stage."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from data_contracts.config import Config
from data_contracts.records import Horizon


class IntakeConfig(Config):
    """What a problem must show before a rollout is spent on it."""

    repeats: int = Field(default=3, ge=1, description="verdicts of the untouched problem that must agree")
    solution_repeats: int = Field(default=3, ge=1, description="verdicts of the reference solution that must agree")
    workers: int = Field(default=4, ge=1, description="problems checked at the same time")
    contaminated: Literal["drop", "keep"] = Field(
        default="drop", description="what becomes of training problems that are like a held-out one"
    )
    near_duplicate: float = Field(
        default=0.9, gt=0, le=1, description="likeness of two solutions (shared 13-grams, Jaccard) that counts as that"
    )
    minimum_share: float = Field(
        default=0.5, ge=0, le=1, description="share of the problems that must be admitted, or the intake gate fails"
    )


class CurriculumConfig(Config):
    """Where problems come from, and which of them are worth a rollout."""

    pack: str | None = Field(
        default=None, description="folder with problems.jsonl to train on; none: problems are generated"
    )
    heldout_pack: str | None = Field(
        default=None, description="folder with problems.jsonl to evaluate on; none: problems are generated"
    )
    train_problems: dict[Horizon, int] = Field(
        default={"short": 1500, "medium": 500, "long": 200},
        description="generated training problems per horizon, where no pack is given",
    )
    intake: IntakeConfig = Field(default=IntakeConfig(), description="the intake gate")
    strategy: Literal["signal", "uniform"] = Field(
        default="signal", description="what is chosen: problems that still teach, or any with equal chance"
    )
    problems_per_iteration: int = Field(default=16, ge=1, description="problems chosen each iteration")
    token_budget: int | None = Field(
        default=None,
        ge=1,
        description="tokens that an iteration may be expected to sample; dear problems then have to earn it",
    )
    low: float = Field(default=0.2, ge=0, le=1, description="expected pass rate above which a seen problem is in band")
    high: float = Field(default=0.8, ge=0, le=1, description="expected pass rate below which a seen problem is in band")
    unseen_share: float = Field(default=0.5, ge=0, le=1, description="share of the choice for problems not seen yet")
    replay_share: float = Field(default=0.15, ge=0, le=1, description="share of the choice for recent failures")
    replay_window: int = Field(default=20, ge=1, description="iterations for which a failure is recent")
    rest: int = Field(default=3, ge=0, description="iterations a problem rests after it was tried")
    prior_strength: float = Field(
        default=2.0, gt=0, description="rollouts that the rate of a problem's horizon and tags is worth for it"
    )
    problem_forgetting: float = Field(
        default=0.95, gt=0, le=1, description="share of a problem's counts kept per iteration: the policy moves on"
    )
    level_forgetting: float = Field(
        default=0.8, gt=0, le=1, description="share of the counts per horizon and tag kept per iteration"
    )
    step_from: float = Field(
        default=0.4, ge=0, le=1, description="success rate of a horizon at which the next one begins to open"
    )
    step_full: float = Field(
        default=0.8, gt=0, le=1, description="success rate of a horizon at which the next one is fully open"
    )
    step_floor: float = Field(
        default=0.1, ge=0, le=1, description="how far open every horizon is from the start; 1: the ladder is off"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"the band is empty: low {self.low} must lie below high {self.high}")
        if self.step_from >= self.step_full:
            raise ValueError(f"step_from {self.step_from} must lie below step_full {self.step_full}")
        if self.unseen_share + self.replay_share > 1:
            raise ValueError("unseen_share + replay_share exceed the whole: keep their sum at 1 or below")
        return self
