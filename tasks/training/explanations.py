"""What the trainer's log-probabilities would be if this or that were the fault.

segments + scores -> Evidence; each kind of fault -> Explanation(cause, what, logprobs)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from data_contracts.records import TOKEN_COLUMNS, Segment
from models.policy import Base
from tasks.training.packing import sampled_positions
from tasks.training.recompute import Recompute
from tasks.training.reports import Cause
from tasks.training.scores import Score

SEGMENTS = 32
"""Segments that are looked at: those with the largest differences."""
PAIRS = 8
"""Pairs of inserted tokens, the most frequent ones near sampled tokens, that a template may render otherwise."""
_NEAR = 4
_FITS = 5


class Explanation(NamedTuple):
    """What the trainer's log-probabilities [N] would be if `cause` were the fault, in detail `what`."""

    cause: Cause
    what: str
    logprobs: Tensor


@dataclass(frozen=True, slots=True)
class Evidence:
    """Sampled tokens [N] of some segments: both log-probabilities (float64), and which follow inserted tokens."""

    segments: Sequence[Segment]
    train: Tensor
    rollout: Tensor
    after_inserted: Tensor
    looked_at: Tensor

    @property
    def apart(self) -> float:
        """Mean |train - rollout| over the tokens looked at (nats)."""
        return self.left(self.train)

    def left(self, logprobs: Tensor) -> float:
        """Mean |logprobs - rollout| over the tokens looked at (nats)."""
        return float((logprobs - self.rollout)[self.looked_at].abs().mean())


def gather(segments: Sequence[Segment], scores: Sequence[Score], number: int) -> Evidence:
    """The worst segments' tokens; looked at are those that version `number` sampled, where both values are finite."""
    each = [_evidence([s], [one], number) for s, one in zip(segments, scores, strict=True)]
    worst = [one for one in each if bool(one.looked_at.any())]
    worst = sorted(worst, key=lambda one: (-one.apart, one.segments[0].trajectory_id))[:SEGMENTS]
    if not worst:
        return _evidence([], [], number)
    parts = zip(*((e.train, e.rollout, e.after_inserted, e.looked_at) for e in worst), strict=True)
    return Evidence([e.segments[0] for e in worst], *(torch.cat(part) for part in parts))


def shifts(evidence: Evidence, reference: Tensor) -> Iterator[Explanation]:
    """Each token that is off with its neighbour's log-probability: the next sampled one's, or none (0) at a gap."""
    counts = [sum(segment.loss_mask) for segment in evidence.segments]
    off = (evidence.train - evidence.rollout).abs() > 0.1 * evidence.apart
    first = evidence.after_inserted
    for step, side, seam in ((1, "before", first), (-1, "after", first.roll(-1))):
        neighbour = torch.cat([part.roll(step) for part in reference.split(counts)])
        what = f"each token that is off has the log-probability of the one {side} it"
        yield Explanation("position", what, torch.where(off, neighbour, evidence.train))
        alone = torch.where(seam, 0, neighbour)
        yield Explanation("position", f"{what}, sampled or not", torch.where(off, alone, evidence.train))


def other_temperature(
    evidence: Evidence, model: Recompute, scores: Sequence[Score], temperature: float
) -> Iterator[Explanation]:
    """The temperature that fits best, by Newton steps: d log p / d log(1/T) = log p + entropy."""
    found = temperature
    for _ in range(_FITS):
        logprobs = flat(scores)
        slope = (logprobs + entropies(scores))[evidence.looked_at]
        apart = (evidence.rollout - logprobs)[evidence.looked_at]
        step = float((slope * apart).sum() / slope.square().sum().clamp(min=1e-12))
        found /= min(max(1 + step, 0.5), 2.0)
        scores = model.scores(evidence.segments, found)
    what = f"the tokens were sampled at {found:.3g}, the trainer scores at {temperature:.3g}"
    yield Explanation("temperature", what, flat(scores))


def other_weights(
    base: Base, evidence: Evidence, versions: Mapping[str, Path | None], temperature: float
) -> Iterator[Explanation]:
    """The log-probabilities under each other version."""
    for name, folder in versions.items():
        scores = Recompute(base, folder).scores(evidence.segments, temperature)
        yield Explanation("weights", f"the engine sampled with {name}", flat(scores))


def other_template(base: Base, evidence: Evidence, model: Recompute, temperature: float) -> Iterator[Explanation]:
    """The log-probabilities without an inserted token, wherever it follows another certain one."""
    for pair in _inserted_pairs(evidence.segments):
        before, left_out = (repr(base.tokenizer.decode([token])) for token in pair)
        scores = model.scores([_without(segment, pair) for segment in evidence.segments], temperature)
        yield Explanation("template", f"the engine read no {left_out} after {before}", flat(scores))


def flat(scores: Sequence[Score]) -> Tensor:
    """All log-probabilities [N], in float64."""
    return torch.tensor([value for one in scores for value in one.logprobs], dtype=torch.float64)


def entropies(scores: Sequence[Score]) -> Tensor:
    """All entropies [N], in float64."""
    return torch.tensor([value for one in scores for value in one.entropy], dtype=torch.float64)


def _evidence(segments: Sequence[Segment], scores: Sequence[Score], number: int) -> Evidence:
    at = [(segment, t) for segment in segments for t in sampled_positions(segment)]
    train = flat(scores)
    rollout = torch.tensor([segment.rollout_logprobs[t] for segment, t in at], dtype=torch.float64)
    inserted = torch.tensor([segment.loss_mask[t - 1] == 0 for segment, t in at], dtype=torch.bool)
    mine = [segment.policy_numbers is None or segment.policy_numbers[t] == number for segment, t in at]
    finite = train.isfinite() & rollout.isfinite()
    return Evidence(segments, train, rollout, inserted, finite & torch.tensor(mine, dtype=torch.bool))


def _inserted_pairs(segments: Sequence[Segment]) -> list[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for segment in segments:
        for t, pair in enumerate(pairwise(segment.token_ids), start=1):
            if not segment.loss_mask[t] and any(segment.loss_mask[max(0, t - _NEAR) : t + _NEAR + 1]):
                found[pair] += 1
    return [pair for pair, _ in found.most_common(PAIRS)]


def _without(segment: Segment, pair: tuple[int, int]) -> Segment:
    left_out = {
        t for t, found in enumerate(pairwise(segment.token_ids), start=1) if found == pair and not segment.loss_mask[t]
    }
    columns = {name: column for name in TOKEN_COLUMNS if (column := getattr(segment, name)) is not None}
    kept = {name: [v for t, v in enumerate(column) if t not in left_out] for name, column in columns.items()}
    return segment.model_copy(update=kept)
