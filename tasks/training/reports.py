"""What the trainer measured, as it crosses the process boundary (no torch here)."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict


class TrainingDiverged(RuntimeError):
    """Too many optimizer steps in a row were not finite: the run stops."""


class MismatchReport(BaseModel):
    """How far the trainer's log-probabilities are from the engine's, over sampled tokens; d = train - rollout, r = e^d.

    All None when there are no tokens. `by_position` splits each row's sampled tokens into equal parts, first to last,
    and holds the mean |d| of each part (None: no token fell there); it is empty when several reports were pooled.
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


def pooled(reports: Sequence[MismatchReport]) -> MismatchReport:
    """One report over the tokens of several: means weighted by their tokens, the largest of the largest."""
    measured = [report for report in reports if report.tokens]
    tokens = sum(report.tokens for report in measured)
    if len(measured) <= 1:
        return measured[0] if measured else MismatchReport(tokens=0)

    def values(name: str) -> list[float]:
        return [float(getattr(report, name)) for report in measured]

    def mean(name: str) -> float:
        return sum(v * r.tokens for v, r in zip(values(name), measured, strict=True)) / tokens

    return MismatchReport(
        tokens=tokens,
        mean_abs_diff=mean("mean_abs_diff"),
        max_abs_diff=max(values("max_abs_diff")),
        mult_prob_error=mean("mult_prob_error"),
        kl_rollout_train=mean("kl_rollout_train"),
        kl_train_rollout=mean("kl_train_rollout"),
        max_after_gap=max(values("max_after_gap")),
        seconds=sum(values("seconds")),
        cpu_seconds=sum(values("cpu_seconds")),
    )


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
