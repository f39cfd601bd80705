"""Settings of the credit stage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from data_contracts.config import Config


class CreditConfig(Config):
    """How a rollout's reward becomes the advantage of each token it sampled."""

    method: Literal["outcome"] = Field(
        default="outcome", description="outcome: the whole rollout shares its group-relative reward"
    )
    baseline: Literal["mean", "leave_one_out"] = Field(
        default="mean", description="what a reward is centred on: its group's mean, or the mean of the others"
    )
    scale: Literal["none", "std"] = Field(
        default="std", description="none: leave as centred; std: divide by the group's standard deviation"
    )
    std_floor: float = Field(default=0.1, gt=0, description="the least standard deviation that is divided by")
    shuffle_across_rollouts: bool = Field(
        default=False,
        description="TEST ONLY, a control: hand the advantages to other rollouts of the batch at random, so that "
        "nothing can be learnt; success that still rises is a trick, not learning",
    )
    shuffle_seed: int = Field(default=0, ge=0, description="seed of that control, mixed with the iteration")
