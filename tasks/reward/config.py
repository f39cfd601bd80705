"""Settings of the reward stage."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from data_contracts.config import Config
from models.reward_classifier import ClassifierConfig


class TermConfig(Config):
    """One term of the training reward: clipped to its bounds, then weighed."""

    enabled: bool = Field(default=False, description="whether the term counts in the training reward")
    weight: float = Field(default=1.0, description="factor of the term in the training reward")
    low: float = Field(default=-1.0, description="the term is clipped from below here")
    high: float = Field(default=1.0, description="the term is clipped from above here")

    @model_validator(mode="after")
    def _bounds_ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low {self.low} lies above high {self.high}: write the smaller bound as low")
        return self


class ProxyConfig(TermConfig):
    """A stand-in for the verified outcome, paid as if it were true: what can be gamed, and the sentinel watches."""

    source: Literal["model", "visible", "brevity"] = Field(
        default="model",
        description="model: the reward model's chance of success, while its calibration holds; visible: share of the "
        "visible checks that passed at the last test; brevity: share of the budget that was left",
    )


class TermsConfig(Config):
    """The terms of the training reward. `outcome` and `process` rest on hidden checks; the rest is not verified.

    `process`, `format` and `cost` are shaping: differences of a potential, which move credit between the turns of a
    rollout and add up to the same for every rollout of a problem, so that the best policy stays the best.
    """

    outcome: TermConfig = Field(
        default=TermConfig(enabled=True, low=0.0), description="1 when all hidden checks pass, 0 otherwise"
    )
    process: TermConfig = Field(
        default=TermConfig(weight=0.2), description="shaping; potential: by how much the hidden checks that pass rose"
    )
    format: TermConfig = Field(
        default=TermConfig(weight=0.1, high=0.0), description="shaping; potential: minus the malformed share of calls"
    )
    cost: TermConfig = Field(
        default=TermConfig(weight=0.1, high=0.0), description="shaping; potential: minus the share of the budget used"
    )
    proxy: ProxyConfig = Field(default=ProxyConfig(low=0.0), description="a stand-in for the outcome, beside it")

    def items(self) -> dict[str, TermConfig]:
        """The terms by name."""
        return {name: getattr(self, name) for name in type(self).model_fields}


class SentinelConfig(Config):
    """What counts as gaming the reward, and what is done about it."""

    action: Literal["switch_off", "hold", "watch"] = Field(
        default="switch_off",
        description="when a gate fails: switch the offending terms off, in this iteration's credit already; hold "
        "the run; or only say so",
    )
    window: int = Field(default=3, ge=1, description="iterations that are compared with as many before them")
    z: float = Field(default=2.33, gt=0, description="standard errors from which a rise, a fall or a sign counts")
    minimum_groups: int = Field(default=24, ge=4, description="groups in a window below which nothing is concluded")
    visible_only_limit: float = Field(
        default=0.1, ge=0, le=1, description="share of rollouts that pass visible checks and fail hidden ones, at most"
    )
    length_change: float = Field(default=0.25, gt=0, description="relative change of sampled tokens that counts")


class ProbeConfig(Config):
    """The reward model: a probe on the frozen base, and what its calibration must reach."""

    rollouts: int = Field(default=1000, ge=1, description="verified rollouts to fit and test the probe on, at most")
    abstain: float = Field(
        default=0.99, gt=0, le=1, description="share of unseen turns that count as known ground; beyond it, no value"
    )
    c: float = Field(default=0.05, gt=0, description="inverse strength of the probe's L2 regularisation")
    train_share: float = Field(default=0.5, gt=0, lt=1, description="share of problems the probe is fitted on")
    calibrate_share: float = Field(default=0.25, gt=0, lt=1, description="share of problems to fit the calibrator on")
    batch_size: int = Field(default=32, ge=1, description="segments in one forward pass of the base")
    bins: int = Field(default=10, ge=2, description="equal-mass bins of the expected calibration error")
    ece_limit: float = Field(default=0.15, gt=0, le=1, description="largest expected calibration error that passes")
    auroc_limit: float = Field(
        default=0.6, ge=0, le=1, description="least AUROC that passes; 0.5 is chance, 0 lets any pass"
    )
    value_ece_limit: float = Field(
        default=0.05, gt=0, le=1, description="the same, for predictions to be used as values (td) or as a proxy"
    )
    value_auroc_limit: float = Field(default=0.85, ge=0, le=1, description="the same, for that use")
    minimum_rollouts: int = Field(
        default=100, ge=2, description="held-out rollouts below which the gates are INCONCLUSIVE"
    )
    bootstraps: int = Field(default=300, ge=10, description="resamples of the problems behind the interval of the ECE")
    seed: int = Field(default=0, ge=0, description="seed of the split by problem, of the choice and the bootstrap")

    @model_validator(mode="after")
    def _leaves_a_test_split(self) -> Self:
        if self.train_share + self.calibrate_share >= 1:
            raise ValueError("train_share + calibrate_share leave no problems to test on: keep their sum below 1")
        return self

    def for_values(self) -> ProbeConfig:
        """The same with the limits that predictions must keep to be paid for."""
        return self.model_copy(update={"ece_limit": self.value_ece_limit, "auroc_limit": self.value_auroc_limit})


class RewardConfig(Config):
    """How rollouts are verified, rewarded, and predicted."""

    terms: TermsConfig = Field(default=TermsConfig(), description="terms of the training reward")
    sentinel: SentinelConfig = Field(default=SentinelConfig(), description="the watch over gamed rewards")
    model: Literal["probe", "classifier"] = Field(
        default="probe", description="what predicts the outcome: a probe on the frozen base, or a fine-tuned classifier"
    )
    probe: ProbeConfig = Field(default=ProbeConfig(), description="the reward model and its calibration gates")
    classifier: ClassifierConfig = Field(default=ClassifierConfig(), description="how the classifier is fine-tuned")
    verifier_workers: int = Field(default=4, ge=1, description="rollouts verified at the same time")
    verifier_retries: int = Field(default=2, ge=0, description="tries after a failure of the sandbox itself")

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the enabled terms by name."""
        return {name: term.weight for name, term in self.terms.items().items() if term.enabled}
