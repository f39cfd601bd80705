"""Settings of the credit stage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from data_contracts.config import Config

Method = Literal["none", "outcome", "process", "td", "branch"]


class BranchConfig(Config):
    """Which decisions are sampled again, and how often."""

    decisions: int = Field(default=16, ge=1, description="decisions of an iteration that are sampled again, at most")
    rollouts: int = Field(default=4, ge=1, description="sessions from before, and as many from after a decision")
    entropy_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of the decisions that are the least certain turns; the rest are first edits after a "
        "failing test",
    )


class CreditConfig(Config):
    """How a rollout's reward becomes the advantage of each token it sampled."""

    method: Method = Field(
        default="outcome",
        description="outcome: the whole rollout shares its group-relative reward; process: beside it, each turn's part "
        "in the hidden checks that pass; td: what each turn changed in the calibrated chance of success; branch: the "
        "same, measured by sampling decisions again; none: the bare reward, compared with nothing",
    )
    baseline: Literal["mean", "leave_one_out"] = Field(
        default="mean", description="what a reward is centred on: its group's mean, or the mean of the others"
    )
    scale: Literal["none", "std"] = Field(
        default="std",
        description="none: leave as centred; std: divide by the standard deviation of the group's rewards (td, branch: "
        "of the batch's)",
    )
    std_floor: float = Field(default=0.1, gt=0, description="the least standard deviation that is divided by")
    progress_weight: float = Field(
        default=1.0, ge=0, description="process: what all hidden checks are worth, beside a success's 1"
    )
    td_lambda: float = Field(
        default=0.8, ge=0, le=1, description="td: 0 trusts the next value alone, 1 the final reward alone"
    )
    td_refit: int = Field(default=5, ge=1, description="td: iterations after which the reward model is fitted again")
    branch: BranchConfig = Field(default=BranchConfig(), description="branch: what is sampled again")
    malformed_charge: float = Field(
        default=0.0, ge=0, description="taken off the advantage of a turn's tokens when it held a malformed call"
    )
    shuffle_across_rollouts: bool = Field(
        default=False,
        description="TEST ONLY, a control: hand the advantages to other rollouts of the batch at random, so that "
        "nothing can be learnt; success that still rises is a trick, not learning",
    )
    shuffle_seed: int = Field(default=0, ge=0, description="seed of that control, mixed with the iteration")

    @property
    def needs_values(self) -> bool:
        """Whether the method asks what a rollout is worth in its middle."""
        return self.method in ("td", "branch")
