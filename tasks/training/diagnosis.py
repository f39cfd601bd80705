"""Why trainer and engine disagree: explanations are tried by recomputing, and only what none explains is guessed at.

segments + scores -> Evidence; policy versions, temperatures, float types -> Explanations -> Diagnosis

An explanation that is right leaves nothing of the difference, and the wrong ones leave about all of it. A wrong
template can not be recomputed, since nobody knows which tokens the engine read: it is told by its pattern.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from data_contracts.records import Segment
from models.policy import Base
from tasks.training.packing import sampled_positions
from tasks.training.recompute import Recompute
from tasks.training.reports import Cause, Diagnosis
from tasks.training.scores import Score

EXPLAINED = 0.2
"""Share of the difference that an explanation may leave."""
SEGMENTS = 32
"""Segments that are looked at: those with the largest differences."""
_AT_SEAMS = 2.0
_CORRELATED = 0.5
_FITS = 5


class Explanation(NamedTuple):
    """What the trainer's log-probabilities [N] would be if `cause` were the fault, in detail `what`."""

    cause: Cause
    what: str
    logprobs: Tensor


@dataclass(frozen=True, slots=True)
class Evidence:
    """Sampled tokens [N] of some segments: both log-probabilities (float64), and which stand after inserted tokens."""

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


def diagnose(
    base: Base,
    segments: Sequence[Segment],
    scores: Sequence[Score],
    *,
    policy: Path,
    number: int,
    versions: Mapping[str, Path | None],
    temperature: float,
) -> Diagnosis:
    """Say what the difference between scores and rollouts points to.

    `policy` is version `number`, which the scores are of; `versions` are others that the engine may hold by mistake.
    """
    evidence = gather(segments, scores, number)
    if not bool(evidence.looked_at.any()):
        return Diagnosis(
            cause="weights",
            sentence=f"no finite difference is at tokens of policy version {number}: look at how older ones are served",
        )
    reference = Recompute(base, policy).scores(evidence.segments, temperature)
    coarse = _flat(Recompute(base, policy, torch.bfloat16).scores(evidence.segments, temperature))
    tried = [
        Explanation("precision", "plain float32 under the same weights agrees with the engine", _flat(reference)),
        Explanation("precision", "bfloat16 under the same weights agrees with the engine", coarse),
        *shifts(evidence, _flat(reference)),
        hotter(evidence, Recompute(base, policy), reference, temperature),
        *other_weights(base, evidence, versions, temperature),
    ]
    return judge(evidence, tried, _flat(reference), coarse)


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
    """Each token that is off with the log-probability of its neighbour among the segment's sampled tokens."""
    counts = [sum(segment.loss_mask) for segment in evidence.segments]
    off = (evidence.train - evidence.rollout).abs() > 0.1 * evidence.apart
    for step, side in ((1, "before"), (-1, "after")):
        neighbour = torch.cat([part.roll(step) for part in reference.split(counts)])
        what = f"each token that is off has the log-probability of the one {side} it"
        yield Explanation("position", what, torch.where(off, neighbour, evidence.train))


def hotter(evidence: Evidence, model: Recompute, scores: Sequence[Score], temperature: float) -> Explanation:
    """The temperature that fits best, by Newton steps: d log p / d log(1/T) = log p + entropy."""
    found = temperature
    for _ in range(_FITS):
        logprobs, entropy = _flat(scores), torch.tensor([e for one in scores for e in one.entropy]).double()
        slope = (logprobs + entropy)[evidence.looked_at]
        apart = (evidence.rollout - logprobs)[evidence.looked_at]
        step = float((slope * apart).sum() / slope.square().sum().clamp(min=1e-12))
        found /= min(max(1 + step, 0.5), 2.0)
        scores = model.scores(evidence.segments, found)
    what = f"the tokens were sampled at {found:.3g}, the trainer scores at {temperature:.3g}"
    return Explanation("temperature", what, _flat(scores))


def other_weights(
    base: Base, evidence: Evidence, versions: Mapping[str, Path | None], temperature: float
) -> Iterator[Explanation]:
    """The log-probabilities under each other version."""
    for name, folder in versions.items():
        scores = Recompute(base, folder).scores(evidence.segments, temperature)
        yield Explanation("weights", f"the engine sampled with {name}", _flat(scores))


def judge(evidence: Evidence, tried: Sequence[Explanation], reference: Tensor, coarse: Tensor) -> Diagnosis:
    """The explanation that leaves least, if it leaves little; else what the pattern of the difference points to."""
    unexplained = {one.what: evidence.left(one.logprobs) / evidence.apart for one in tried}
    best = min(tried, key=lambda one: unexplained[one.what])
    if unexplained[best.what] <= EXPLAINED:
        left = evidence.left(best.logprobs)
        sentence = f"{best.what}: so the mean difference is {left:.2g} nats, not {evidence.apart:.2g}"
        return Diagnosis(cause=best.cause, sentence=f"{sentence}; {REMEDIES[best.cause]}", unexplained=unexplained)
    cause, pattern = _by_pattern(evidence, reference, coarse)
    return Diagnosis(cause=cause, sentence=f"{pattern}; {REMEDIES[cause]}", unexplained=unexplained)


def _by_pattern(evidence: Evidence, reference: Tensor, coarse: Tensor) -> tuple[Cause, str]:
    rounding, apart = ((x - reference)[evidence.looked_at] for x in (coarse, evidence.rollout))
    alike = float((rounding * apart).sum() / (rounding.norm() * apart.norm()).clamp(min=1e-12))
    if alike > _CORRELATED:
        return "precision", f"the difference goes with that of bfloat16 (correlation {alike:.2f})"
    off = (evidence.train - evidence.rollout).abs()
    seams = off[evidence.looked_at & evidence.after_inserted]
    within = off[evidence.looked_at & ~evidence.after_inserted]
    if len(seams) and len(within) and float(seams.mean()) > _AT_SEAMS * float(within.mean()):
        sizes = f"{float(seams.mean()):.2g} nats right after inserted tokens, {float(within.mean()):.2g} elsewhere"
        return "template", f"no temperature, shift, float type or version explains it, and it is {sizes}"
    return "weights", "no temperature, shift, float type or known version explains it, and it is alike at all tokens"


REMEDIES: dict[Cause, str] = {
    "weights": "serve the version in training under its own name, and look at the engine's digest",
    "template": "compare the tokens that the engine was sent with the segments': one chat template on both sides",
    "temperature": "give rollout.temperature and training.temperature one value",
    "position": "look at how the engine's log-probabilities are aligned with its tokens, after tool results above all",
    "precision": "run engine and trainer in one float type, or raise the gate's limits to what it costs",
}


def _evidence(segments: Sequence[Segment], scores: Sequence[Score], number: int) -> Evidence:
    at = [(segment, t) for segment in segments for t in sampled_positions(segment)]
    train = torch.tensor([value for one in scores for value in one.logprobs], dtype=torch.float64)
    rollout = torch.tensor([segment.rollout_logprobs[t] for segment, t in at], dtype=torch.float64)
    inserted = torch.tensor([segment.loss_mask[t - 1] == 0 for segment, t in at], dtype=torch.bool)
    mine = [segment.policy_numbers is None or segment.policy_numbers[t] == number for segment, t in at]
    finite = train.isfinite() & rollout.isfinite()
    return Evidence(segments, train, rollout, inserted, finite & torch.tensor(mine, dtype=torch.bool))


def _flat(scores: Sequence[Score]) -> Tensor:
    return torch.tensor([value for one in scores for value in one.logprobs], dtype=torch.float64)
