"""Decides whether a candidate is better than the champion, and publishes it.

outcomes of both on the same problems -> release gate -> bundle -> release version

Nothing here moves the champion, except for the very first one.
"""

from __future__ import annotations

import math
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_contracts.gates import Gate, Verdict, require
from data_contracts.records import Trajectory
from models.registry import Registry
from models.release import Bundle, Release
from tasks.evaluation.intervals import paired_interval
from tasks.release.config import ReleaseConfig

Outcomes = Mapping[str, float | None]
"""Success by problem id: the share of its rollouts with a good verified outcome, None where none was scorable."""


@dataclass(frozen=True, slots=True)
class PairedGain:
    """Mean difference candidate - champion over the problems both have, with its interval."""

    gain: float
    low: float
    high: float
    pairs: int
    better: int
    worse: int


def outcomes_by_problem(trajectories: Iterable[Trajectory]) -> dict[str, float | None]:
    """Share of good verified outcomes per problem; rollouts that say nothing about the policy do not count."""
    scored: dict[str, list[bool]] = defaultdict(list)
    for trajectory in trajectories:
        known = scored[trajectory.problem_id]
        if trajectory.scorable:
            known.append(bool(trajectory.outcome))
    return {problem: sum(known) / len(known) if known else None for problem, known in scored.items()}


def paired_gain(champion: Outcomes, candidate: Outcomes, confidence: float = 0.95) -> PairedGain | None:
    """Mean paired difference with the interval of `paired_interval`; None without a pair."""
    both = [(before, after) for key in champion if _known(before := champion[key], after := candidate.get(key))]
    differences = [after - before for before, after in both if before is not None and after is not None]
    n = len(differences)
    if n == 0:
        return None
    low, high = paired_interval(differences, confidence)
    better = sum(value > 0 for value in differences)
    worse = sum(value < 0 for value in differences)
    return PairedGain(sum(differences) / n, low, high, n, better, worse)


def release_gate(champion: Outcomes, candidate: Outcomes, config: ReleaseConfig) -> Gate:
    """PASS only when the lower end of the interval of the paired gain is above `min_gain`.

    INCONCLUSIVE when too few problems, or too small a share of them, were measured on both sides.
    """
    measured = paired_gain(champion, candidate, config.confidence)
    problems = len({*champion, *candidate})
    pairs = 0 if measured is None else measured.pairs
    evidence: dict[str, float | int | str | bool | None] = {
        "pairs": pairs, "problems": problems, "min_gain": config.min_gain, "confidence": config.confidence
    }  # fmt: skip
    if measured is None or pairs < config.minimum_pairs or pairs < config.minimum_share * problems:
        reason = (
            f"{pairs} of {problems} problems were measured on champion and candidate, "
            f"{config.minimum_pairs} and {config.minimum_share:.0%} of all are needed"
        )
        return Gate(name="release.gain", verdict=Verdict.INCONCLUSIVE, reason=reason, evidence=evidence)
    evidence |= {
        "gain": measured.gain,
        "low": measured.low,
        "high": measured.high,
        "better": measured.better,
        "worse": measured.worse,
    }
    holds = measured.low > config.min_gain
    reason = (
        f"gain {measured.gain:+.1%} on {pairs} pairs, {config.confidence:.0%} interval {measured.low:+.1%} to "
        f"{measured.high:+.1%}: its lower end {'is' if holds else 'is not'} above {config.min_gain:+.1%}"
    )
    verdict = Verdict.PASS if holds else Verdict.FAIL
    return Gate(name="release.gain", verdict=verdict, reason=reason, evidence=evidence)


def publish_candidate(registry: Registry, bundle: Bundle, gates: Sequence[Gate]) -> Release:
    """Publish `bundle` with `gates` as its evidence; raises `GateHeld` when one of them is not a PASS.

    The champion stays. The same bundle again, also after a kill, gives the same release.
    """
    require(*gates)
    with_evidence = bundle.model_copy(update={"evidence": (*bundle.evidence, *gates)})
    return registry.release(registry.publish(with_evidence))


def bootstrap_champion(registry: Registry, bundle: Bundle, *, who: str = "ratchet") -> Release:
    """The champion; when there is none, `bundle` (base and policy-00000, no reward model) becomes the first one."""
    champion = registry.champion()
    if champion is not None:
        return champion
    version = registry.publish(bundle)
    return registry.promote(version, who=who, why="the first champion: the base as it came", compared_with=0)


def code_revision(folder: Path) -> str:
    """The commit of the code in `folder`, with `+changes` when the tree differs from it; `unknown` outside git."""
    head = _git(folder, "rev-parse", "HEAD")
    if not head:
        return "unknown"
    return head + ("+changes" if _git(folder, "status", "--porcelain") else "")


def _known(*values: float | None) -> bool:
    return all(value is not None and math.isfinite(value) for value in values)


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False, timeout=30
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
