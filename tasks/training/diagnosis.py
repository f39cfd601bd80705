"""Why trainer and engine disagree: explanations are tried by recomputing, and only what none explains is guessed at.

Evidence, Explanations -> Diagnosis

An explanation that is right leaves nothing of the difference, and the wrong ones leave about all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from data_contracts.records import Segment
from models.policy import Base
from tasks.training.explanations import (
    Evidence,
    Explanation,
    entropies,
    flat,
    gather,
    other_temperature,
    other_template,
    other_weights,
    shifts,
)
from tasks.training.recompute import Recompute
from tasks.training.reports import Cause, Diagnosis
from tasks.training.scores import Score

EXPLAINED = 0.2
"""Share of the difference that an explanation may leave."""
_ALIKE = 2.0
_AT_SEAMS = 1.4
_NO_MORE_THAN_ROUNDING = 2.0

REMEDIES: dict[Cause, str] = {
    "weights": "serve the version in training under its own name, and look at the engine's digest",
    "template": "compare the tokens that the engine was sent with the segments': one chat template on both sides",
    "temperature": "give rollout.temperature and training.temperature one value",
    "position": "look at how the engine's log-probabilities are aligned with its tokens, after tool results above all",
    "precision": "run engine and trainer in one float type, or raise the gate's limits to what it costs",
}


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
    if not bool(evidence.looked_at.any()) or not evidence.apart:
        return Diagnosis(
            cause="weights",
            sentence=f"no finite difference is at tokens of policy version {number}: look at how older ones are served",
        )
    model = Recompute(base, policy)
    reference = model.scores(evidence.segments, temperature)
    coarse = flat(Recompute(base, policy, torch.bfloat16).scores(evidence.segments, temperature))
    tried = [
        Explanation("precision", "plain float32 under the same weights agrees with the engine", flat(reference)),
        Explanation("precision", "bfloat16 under the same weights agrees with the engine", coarse),
        *shifts(evidence, flat(reference)),
        *other_temperature(evidence, model, reference, temperature),
        *other_weights(base, evidence, versions, temperature),
        *other_template(base, evidence, model, temperature),
    ]
    return judge(evidence, tried, reference, coarse)


def judge(evidence: Evidence, tried: Sequence[Explanation], reference: Sequence[Score], coarse: Tensor) -> Diagnosis:
    """The first explanation that leaves about the least, if that is little; else what the pattern points to.

    The first, since later ones contain earlier ones: a fitted temperature may be the trainer's own. `reference` are the
    segments' scores in float32, `coarse` their log-probabilities [N] in bfloat16.
    """
    unexplained = {one.what: evidence.left(one.logprobs) / evidence.apart for one in tried}
    least = min(unexplained.values())
    best = next(one for one in tried if unexplained[one.what] <= _ALIKE * least)
    if unexplained[best.what] <= EXPLAINED:
        left = evidence.left(best.logprobs)
        sentence = f"{best.what}: so the mean difference is {left:.2g} nats, not {evidence.apart:.2g}"
        return Diagnosis(cause=best.cause, sentence=f"{sentence}; {REMEDIES[best.cause]}", unexplained=unexplained)
    cause, pattern = _by_pattern(evidence, reference, coarse)
    sentence = f"nothing that was recomputed explains it, and {pattern}; {REMEDIES[cause]}"
    return Diagnosis(cause=cause, sentence=sentence, unexplained=unexplained)


def _by_pattern(evidence: Evidence, reference: Sequence[Score], coarse: Tensor) -> tuple[Cause, str]:
    rounding = float((coarse - flat(reference))[evidence.looked_at].abs().mean())
    if evidence.apart <= _NO_MORE_THAN_ROUNDING * rounding:
        sizes = f"{evidence.apart:.2g} nats, bfloat16 makes {rounding:.2g}"
        return "precision", f"it is no larger than what a coarser float type does ({sizes})"
    seams, within = (_by_entropy(evidence, reference, where) for where in (True, False))
    if seams > _AT_SEAMS * within:
        return "template", f"it is largest right after inserted tokens ({seams / within:.1f} times, by entropy)"
    return "weights", "it is alike at all tokens, as under weights that no known version holds"


def _by_entropy(evidence: Evidence, reference: Sequence[Score], after_inserted: bool) -> float:
    # where the model is undecided any fault shows more, and after inserted tokens it is
    where = evidence.looked_at & (evidence.after_inserted == after_inserted)
    apart = (evidence.train - evidence.rollout)[where].abs().sum()
    return float(apart / entropies(reference)[where].sum().clamp(min=1e-6))
