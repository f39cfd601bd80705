"""What the trainer measured, as it crosses the process boundary (no torch here)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class TrainingDiverged(RuntimeError):
    """Too many optimizer steps in a row were not finite: the run stops."""


class MismatchReport(BaseModel):
    """How far the trainer's log-probabilities are from the engine's, over sampled tokens; d = train - rollout, r = e^d.

    All None when there are no tokens. `by_position` splits each row's sampled tokens into equal parts from first to
    last and holds the mean |d| of each part (None: no token fell there).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: int
    mean_abs_diff: float | None = None
    max_abs_diff: float | None = None
    mult_prob_error: float | None = None
    """mean e^|d|: 1 when equal, by which factor probabilities differ otherwise"""
    kl_rollout_train: float | None = None
    """KL(rollout || train), estimated from rollout samples as mean(r - 1 - d): never negative"""
    kl_train_rollout: float | None = None
    """KL(train || rollout), estimated from rollout samples as mean(r d - r + 1): never negative"""
    max_after_gap: float | None = None
    """largest |d| at the first sampled token after tokens that were not sampled, where a shift shows first"""
    by_position: tuple[float | None, ...] = ()
    seconds: float = 0.0
    cpu_seconds: float = 0.0


class TrainReport(BaseModel):
    """One iteration of training. Means are over the optimizer steps that were applied, unless said otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    loss: float
    grad_norm: float
    """before clipping"""
    clip_fraction: float
    """share of the batch's sampled tokens whose ratio was clipped"""
    entropy: float
    """mean over the batch's sampled tokens, under the weights before this iteration (nats)"""
    tokens: int
    """sampled tokens of the batch: the denominators' sum over one epoch"""
    steps: int
    """optimizer steps applied"""
    skipped: int
    """optimizer steps skipped because a loss or gradient was not finite"""
    idle_segments: int
    """segments without any advantage: not computed, their tokens stay in the denominator"""
    mean_abs_diff: float | None
    """|train - rollout| log-probability over sampled tokens, before this iteration"""
    mean_weight: float
    """mean importance weight over sampled tokens"""
    learning_rate: float
    digest: str
    """of the new policy"""
    seconds: float
    cpu_seconds: float
