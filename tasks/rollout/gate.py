"""Whether a batch of rollouts may train: four rules over measured figures.

accepted rows, endings, digests, log-probability differences -> Gates
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from data_contracts.gates import Gate, Verdict, threshold
from data_contracts.records import INFRASTRUCTURE, Trajectory

Explain = Callable[[], tuple[str, str]]
"""Looks for the cause of a mismatch: its name, and a sentence about it."""


def contract_gate(accepted: int, total: int, *, minimum_share: float) -> Gate:
    """The share of rows that their contract accepted; no rows is INCONCLUSIVE."""
    share = accepted / total if total else None
    return threshold("rollout contract", share, minimum_share, kind="at_least", n=total)


def infrastructure_gate(trajectories: Sequence[Trajectory], *, maximum_share: float) -> Gate:
    """The share of rollouts that ended in an infrastructure failure, counted by kind; no rollouts is INCONCLUSIVE."""
    failures = Counter(t.status for t in trajectories if t.status in INFRASTRUCTURE)
    share = failures.total() / len(trajectories) if trajectories else None
    gate = threshold("rollout infrastructure", share, maximum_share, kind="at_most", n=len(trajectories))
    return gate.model_copy(update={"evidence": gate.evidence | dict(sorted(failures.items()))})


def digest_gate(trajectories: Sequence[Trajectory], expected: Mapping[str, str]) -> Gate:
    """Whether every turn was sampled by the weights of one of the versions expected, name -> digest.

    No turns, or a digest that is not known, is INCONCLUSIVE.
    """
    name = "rollout policy digest"
    served = [(t.id, turn, turn.policy_version or t.policy_version) for t in trajectories for turn in t.turns]
    wrong = [(rollout, turn) for rollout, turn, version in served if turn.policy_digest != expected.get(version)]
    of_version = Counter(version for _, _, version in served)
    evidence: dict[str, float | int | str | bool | None] = {
        "expected": ", ".join(expected.values()),
        "n": len(served),
        "wrong": len(wrong),
        **{f"turns of {version}": count for version, count in sorted(of_version.items())},
    }
    if not served or not expected or not all(expected.values()):
        reason = "no turn was sampled" if not served else "the expected digest is not known"
        return Gate(name=name, verdict=Verdict.INCONCLUSIVE, reason=reason, evidence=evidence)
    if wrong:
        rollout, turn = wrong[0]
        reason = f"{len(wrong)} of {len(served)} turns were sampled by other weights, first {rollout} turn {turn.index}"
        return Gate(name=name, verdict=Verdict.FAIL, reason=reason, evidence=evidence | {"served": turn.policy_digest})
    reason = f"all {len(served)} turns were sampled by {', '.join(d[:12] for d in expected.values())}"
    return Gate(name=name, verdict=Verdict.PASS, reason=reason, evidence=evidence)


def mismatch_gate(
    mean_abs_diff: float | None,
    max_abs_diff: float | None,
    *,
    n: int,
    mean_limit: float,
    max_limit: float,
    figures: Mapping[str, float | None] | None = None,
    explain: Explain | None = None,
) -> Gate:
    """Rollout against trainer log-probabilities (nats) under equal weights, over `n` sampled tokens.

    Both the mean and the largest absolute difference have to hold; a figure that is missing or not finite, or no
    tokens, is INCONCLUSIVE, unless the other one is over its limit: that is a FAIL already. `figures` are kept with
    the evidence; `explain` is asked for the cause and a sentence about it, on FAIL alone.
    """
    parts = [
        threshold("mean", mean_abs_diff, mean_limit, kind="at_most", n=n),
        threshold("max", max_abs_diff, max_limit, kind="at_most", n=n),
    ]
    evidence: dict[str, float | int | str | bool | None] = {
        **(figures or {}),
        "mean_abs_diff": _shown(mean_abs_diff),
        "max_abs_diff": _shown(max_abs_diff),
        "mean_limit": mean_limit,
        "max_limit": max_limit,
        "n": n,
    }
    verdicts = [part.verdict for part in parts]
    worst = next((v for v in (Verdict.FAIL, Verdict.INCONCLUSIVE) if v in verdicts), Verdict.PASS)
    shown = [part for part in parts if part.verdict is worst]
    reason = "; ".join(f"{part.name} difference: {part.reason}" for part in shown)
    if worst is Verdict.FAIL and explain is not None:
        cause, sentence = explain()
        evidence["cause"] = cause
        reason += f"; this points to {cause}: {sentence}"
    return Gate(name="rollout mismatch", verdict=worst, reason=reason, evidence=evidence)


def _shown(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
