"""Settings of the evaluation stage."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from data_contracts.config import Config
from data_contracts.records import Horizon


class EvaluationConfig(Config):
    """What the policy is measured on, before and after training: held-out problems, never trained on."""

    problems: dict[Horizon, int] = Field(
        default={"short": 320, "medium": 160, "long": 80}, description="held-out problems per horizon, at most"
    )
    greedy: bool = Field(default=True, description="one rollout a problem at temperature 0")
    rollouts: int = Field(default=1, ge=0, description="sampled rollouts a problem; 0: greedy only")
    temperature: float = Field(default=1.0, gt=0, description="temperature of the sampled rollouts")
    seed: int = Field(default=0, ge=0, description="seed of the sampled rollouts, the same before and after")

    @model_validator(mode="after")
    def _measures_something(self) -> Self:
        if not self.greedy and not self.rollouts:
            raise ValueError("nothing is measured: set greedy = true or rollouts to 1 or more")
        return self
