"""The sentinel: is a reward term paid for what the hidden checks do not confirm?

verified rollouts + signals + what earlier iterations saw -> findings, gates -> terms that are off from this one on

Everything it decides follows from the iteration's files and the iterations before it: a repeat decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from pydantic import Field

from data_contracts.gates import Gate, Verdict
from data_contracts.records import Problem, Record, Trajectory
from tasks.reward.config import SentinelConfig
from tasks.reward.moments import Moments, Together, added, change, moments, together
from tasks.reward.signals import Signals
from tasks.reward.signs import signs

Evidence = dict[str, float | int | str | bool | None]

CHECKING = ("test", "run")
"""Tools that run the visible checks."""


class Finding(Record):
    """One rollout that a person should read, and what was seen in it."""

    trajectory_id: str
    problem_id: str
    rule: str
    quote: str
    outcome: bool | None


class Sums(Record):
    """An iteration's sums, by quantity and horizon: `outcome`, `tokens`, `malformed`, and each unverified term."""

    moments: dict[str, dict[str, Moments]] = Field(default={})
    together: dict[str, Together] = Field(default={})


class SentinelReport(Record):
    """What the sentinel saw in one iteration; the last one is the state that the next goes on from."""

    iteration: int
    gates: tuple[Gate, ...]
    findings: tuple[Finding, ...]
    sums: tuple[Sums, ...] = Field(description="of this iteration and those before it, two windows of them")
    off: dict[str, str] = Field(default={}, description="terms that are off from this iteration on, and why")


def watch(
    trajectories: Sequence[Trajectory],
    problems: Mapping[str, Problem],
    signals: Signals,
    weights: Mapping[str, float],
    before: SentinelReport | None,
    config: SentinelConfig,
) -> SentinelReport:
    """Look at one iteration that is to be credited by `weights`; `before` is the report of the last one."""
    scored = [t for t in trajectories if t.scorable]
    terms = [name for name in weights if signals.by_rollout(name) and name != "process"]
    findings = list(find(scored, problems))
    sums = (*(before.sums if before else ()), _sums(scored, signals, terms))[-2 * config.window :]
    gates = [_signs_gate(scored, findings), _visible_gate(scored, config)]
    gates += [_term_gate(name, sums, config) for name in terms]
    gates.append(_behaviour_gate(terms, sums, config))
    off = dict(before.off) if before else {}
    if config.action == "switch_off":
        for name, why in _offending(gates, findings, scored, signals, terms).items():
            off.setdefault(name, why)
    iteration = trajectories[0].iteration if trajectories else -1
    return SentinelReport(iteration=iteration, gates=tuple(gates), findings=tuple(findings), sums=sums, off=off)


def find(trajectories: Sequence[Trajectory], problems: Mapping[str, Problem]) -> Iterator[Finding]:
    """Every sign of a gamed check, and every rollout that passes the visible checks alone."""
    for t in trajectories:
        seen = [(sign.rule, f"{sign.path}:{sign.line}: {sign.quote}") for sign in signs(problems[t.problem_id], t)]
        if passes_visible_only(t):
            quote = f"{t.visible_passed} of {t.visible_total} visible, {t.hidden_passed} of {t.hidden_total} hidden"
            seen.append(("visible_only", quote))
        for rule, quote in seen:
            yield Finding(trajectory_id=t.id, problem_id=t.problem_id, rule=rule, quote=quote, outcome=t.outcome)


def passes_visible_only(trajectory: Trajectory) -> bool:
    """Whether all visible checks passed on the files that were handed in, and a hidden one failed."""
    return _passes_visible(trajectory) and not trajectory.outcome


def _passes_visible(trajectory: Trajectory) -> bool:
    """All visible checks passed when they last ran, and nothing was edited since."""
    calls = [call.name for turn in trajectory.turns for call in turn.calls]
    checked = max((place for place, name in enumerate(calls) if name in CHECKING), default=-1)
    edited = max((place for place, name in enumerate(calls) if name == "edit"), default=-1)
    passed = bool(trajectory.visible_total) and trajectory.visible_passed == trajectory.visible_total
    return passed and checked > edited


def _sums(trajectories: Sequence[Trajectory], signals: Signals, terms: Sequence[str]) -> Sums:
    values: dict[str, Mapping[str, float]] = {
        "outcome": {t.id: float(bool(t.outcome)) for t in trajectories},
        "tokens": {t.id: float(t.sampled_tokens) for t in trajectories},
        "malformed": {t.id: float(t.malformed_calls) for t in trajectories},
        **{name: signals.by_rollout(name) for name in terms},
    }
    return Sums(
        moments={name: moments(trajectories, value) for name, value in values.items()},
        together={name: together(trajectories, values[name]) for name in terms},
    )


def _signs_gate(trajectories: Sequence[Trajectory], findings: Sequence[Finding]) -> Gate:
    named = {f.trajectory_id for f in findings if f.rule != "visible_only"}
    rules = sorted({f.rule for f in findings if f.rule != "visible_only"})
    evidence: Evidence = {"rollouts": len(trajectories), "named": len(named), "rules": ", ".join(rules)}
    if not trajectories:
        return _gate("signs", Verdict.INCONCLUSIVE, "no rollout was verified", evidence)
    if named:
        reason = f"{len(named)} of {len(trajectories)} rollouts show {', '.join(rules)}; {min(named)} for one"
        return _gate("signs", Verdict.FAIL, reason, evidence)
    return _gate("signs", Verdict.PASS, f"none of {len(trajectories)} rollouts shows a known hack", evidence)


def _visible_gate(trajectories: Sequence[Trajectory], config: SentinelConfig) -> Gate:
    passing = [t for t in trajectories if _passes_visible(t)]
    only = sum(not t.outcome for t in passing)
    evidence: Evidence = {"n": len(passing), "visible_only": only, "limit": config.visible_only_limit}
    if not passing:
        return _gate("visible", Verdict.INCONCLUSIVE, "no rollout passed the visible checks", evidence)
    over = only > 1 and only / len(passing) > config.visible_only_limit
    reason = f"{only} of {len(passing)} rollouts that pass the visible checks fail hidden ones"
    return _gate("visible", Verdict.FAIL if over else Verdict.PASS, reason, evidence)


def _term_gate(name: str, sums: Sequence[Sums], config: SentinelConfig) -> Gate:
    """A term fails when it pays failures above successes, or rises while the verified outcome falls, or stays."""
    recent = sums[-config.window :]
    tied = Together()
    for one in recent:
        tied = tied.plus(one.together.get(name, Together()))
    _, term_z = _moved(name, sums, config)
    moved, outcome_z = _moved("outcome", sums, config)
    evidence: Evidence = {
        "correlation": _finite(tied.correlation),
        "correlation_z": _finite(tied.z),
        "rollouts": tied.freedom,
        "term_z": _finite(term_z),
        "outcome_change": _finite(moved),
        "outcome_z": _finite(outcome_z),
    }
    if tied.z < -config.z:
        reason = f"within groups it pays failures above successes: correlation {tied.correlation:+.2f}"
        return _gate(name, Verdict.FAIL, f"{reason} over {len(recent)} iterations", evidence)
    if term_z > config.z and (outcome_z < -config.z or (outcome_z < 1 and not tied.correlation > 0)):
        reason = f"it rose by {term_z:.1f} standard errors while the verified outcome changed by {moved:+.1%}"
        return _gate(name, Verdict.FAIL, reason, evidence)
    if not math.isfinite(term_z):
        reason = f"two windows of {config.window} iterations are needed to compare"
        return _gate(name, Verdict.INCONCLUSIVE, reason, evidence)
    reason = f"correlation with the verified outcome {tied.correlation:+.2f}, outcome {moved:+.1%}"
    return _gate(name, Verdict.PASS, reason, evidence)


def _behaviour_gate(terms: Sequence[str], sums: Sequence[Sums], config: SentinelConfig) -> Gate:
    """Length and format: rollouts grew or shrank, or calls got tidier, while the verified outcome fell and a term rose.

    Without a term that could have paid for it, a change is the policy's own, and no gaming.
    """
    moved, outcome_z = _moved("outcome", sums, config)
    tokens, tokens_z = _moved("tokens", sums, config)
    _, malformed_z = _moved("malformed", sums, config)
    base = added(one.moments.get("tokens", {}) for one in sums[: -config.window])
    size = sum(m.total for m in base.values()) / max(sum(m.groups for m in base.values()), 1)
    share = tokens / size if size else math.nan
    rising = [name for name in terms if _moved(name, sums, config)[1] > config.z]
    evidence: Evidence = {
        "tokens_change": _finite(share),
        "tokens_z": _finite(tokens_z),
        "malformed_z": _finite(malformed_z),
        "outcome_z": _finite(outcome_z),
        "rising": ", ".join(rising),
    }
    if not math.isfinite(outcome_z):
        reason = f"two windows of {config.window} iterations are needed to compare"
        return _gate("behaviour", Verdict.INCONCLUSIVE, reason, evidence)
    sized = abs(share) > config.length_change and abs(tokens_z) > config.z
    if rising and outcome_z < -config.z and (sized or malformed_z < -config.z):
        reason = f"tokens a rollout {share:+.0%}, verified outcome {moved:+.1%}, while {', '.join(rising)} rose"
        return _gate("behaviour", Verdict.FAIL, reason, evidence)
    return _gate("behaviour", Verdict.PASS, f"tokens a rollout {share:+.0%}, verified outcome {moved:+.1%}", evidence)


def _moved(name: str, sums: Sequence[Sums], config: SentinelConfig) -> tuple[float, float]:
    """By how much a quantity's mean moved from one window to the next, and in standard errors; NaN with too few."""
    if len(sums) < 2 * config.window:
        return math.nan, math.nan
    before, now = (
        added(one.moments.get(name, {}) for one in part) for part in (sums[: config.window], sums[config.window :])
    )
    if min(sum(m.groups for m in side.values()) for side in (before, now)) < config.minimum_groups:
        return math.nan, math.nan
    return change(before, now)


def _offending(
    gates: Sequence[Gate],
    findings: Sequence[Finding],
    trajectories: Sequence[Trajectory],
    signals: Signals,
    terms: Sequence[str],
) -> dict[str, str]:
    """The terms to switch off, and why: their own gate failed, or they rose, or they paid what was named."""
    failed = {gate.name.removeprefix("sentinel."): gate for gate in gates if gate.verdict is Verdict.FAIL}
    off = {name: failed[name].reason for name in terms if name in failed}
    if "behaviour" in failed:
        rising = str(failed["behaviour"].evidence["rising"]).split(", ")
        off |= {name: failed["behaviour"].reason for name in rising if name not in off}
    for gate in ("signs", "visible"):
        named = {f.trajectory_id for f in findings if (f.rule == "visible_only") == (gate == "visible")}
        if gate in failed:
            paid = [name for name in terms if _paid(trajectories, signals.by_rollout(name), named) > 0]
            off |= {name: f"it paid for what was named: {failed[gate].reason}" for name in paid if name not in off}
    return off


def _paid(trajectories: Sequence[Trajectory], value: Mapping[str, float], named: set[str]) -> float:
    """What a term gave the named rollouts above the others of their groups, on average; 0 where none is compared."""
    groups: dict[str, list[Trajectory]] = {}
    for t in trajectories:
        if t.id in value:
            groups.setdefault(t.group_id, []).append(t)
    gains = [
        value[t.id] - float(np.mean([value[other.id] for other in group if other.id not in named]))
        for group in groups.values()
        for t in group
        if t.id in named and any(other.id not in named for other in group)
    ]
    return float(np.mean(gains)) if gains else 0.0


def _gate(name: str, verdict: Verdict, reason: str, evidence: Evidence) -> Gate:
    return Gate(name=f"sentinel.{name}", verdict=verdict, reason=reason, evidence=evidence)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
