"""What the trainer measured, as it crosses the process boundary (no torch here)."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict


class TrainingDiverged(RuntimeError):
    """Too many optimizer steps in a row were not finite: the run stops."""


PARTS = 8
"""Equal parts that a row's sampled tokens are split into, for the report by position."""
TURNS = 16
"""Turns told apart in the report by turn: the last one stands for all later ones too."""


class MismatchReport(BaseModel):
    """How far the trainer's log-probabilities are from the engine's, over sampled tokens; d = train - rollout, r = e^d.

    The trainer's are those of the version that sampled each token, so that this is numerical alone; what older versions
    are apart from the current one is `staleness` (there d = current - sampling version, both the trainer's; None where
    every token is of the current version). All figures are None when there are no tokens.
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
    """mean |d| in each of PARTS equal parts of the rows' sampled tokens, first to last (None: no token fell there)"""
    by_turn: tuple[float | None, ...] = ()
    """mean |d| of turn 0, 1, ... (None: no token), the last of TURNS with all later ones"""
    staleness: MismatchReport | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def growth(self) -> float | None:
        """Mean |d| of the last part by that of the first: above 1, the difference grows along the trajectory."""
        first, last = (self.by_position[0], self.by_position[-1]) if self.by_position else (None, None)
        return last / first if first and last is not None else None

    def figures(self) -> dict[str, float | None]:
        """All figures by name, flat: `position.1` ..., `turn.0` ..., `stale.mean_abs_diff` ...; None if not finite."""
        whole = self.model_dump(exclude={"by_position", "by_turn", "staleness", "seconds", "cpu_seconds"})
        found = {name: value if value is not None and math.isfinite(value) else None for name, value in whole.items()}
        found["growth"] = self.growth
        found |= {f"position.{part}": value for part, value in enumerate(self.by_position, start=1)}
        found |= {f"turn.{turn}": value for turn, value in enumerate(self.by_turn)}
        stale = self.staleness.figures() if self.staleness else {}
        return found | {f"stale.{name}": value for name, value in stale.items() if "." not in name}


Cause = Literal["weights", "template", "temperature", "position", "precision"]


class Diagnosis(BaseModel):
    """What a mismatch points to. `unexplained` is the share of it that each tried explanation leaves (0: none)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cause: Cause
    sentence: str
    unexplained: dict[str, float] = {}


class TrainReport(BaseModel):
    """One iteration of training. Means are over the optimizer steps that were applied, unless said otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    loss: float
    grad_norm: float
    """before clipping"""
    clip_fraction: float
    """share of the batch's sampled tokens whose gradient the objective's clip or bound removed"""
    extreme_tokens: int
    """sampled tokens that were left out of a loss because their log-ratio was extreme, over all epochs"""
    entropy: float
    """mean over the batch's sampled tokens, under the weights before this iteration (nats)"""
    tokens: int
    """sampled tokens of the batch: the denominators' sum over one epoch"""
    base_kl: float | None
    """mean of the KL(policy || base) estimate over the batch's sampled tokens; None where it is not in the loss"""
    steps: int
    """optimizer steps applied"""
    skipped: int
    """optimizer steps skipped because a loss or gradient was not finite"""
    skipped_by_loss: int
    """of those, the ones whose loss was not finite; in the others the loss was, and a gradient was not"""
    idle_segments: int
    """segments without any advantage: computed only for a penalty's sake, their tokens stay in the denominator"""
    mean_abs_diff: float | None
    """|train - rollout| log-probability over sampled tokens, before this iteration"""
    mean_weight: float
    """mean importance weight over sampled tokens"""
    learning_rate: float
    digest: str
    """of the new policy"""
    seconds: float
    cpu_seconds: float
