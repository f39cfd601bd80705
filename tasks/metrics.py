"""One iteration in figures: what was sampled, what it was worth, what was learnt.

trajectories + gates + TrainReport + IterationSignal -> flat metrics (None: nothing to measure)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from data_contracts.gates import Gate
from data_contracts.records import HORIZONS, ORIGINS, Trajectory, policy_number
from data_contracts.store import read_json, read_trajectories
from tasks.credit.branch import BranchReport
from tasks.curriculum.state import IterationSignal
from tasks.reward.signals import NO_SIGNALS, Signals
from tasks.reward.terms import scalar_reward
from tasks.training.reports import TrainReport

Metrics = dict[str, float | int | None]

NO_METRICS = ("mean_limit", "max_limit", "n", "cause")
"""Evidence of the mismatch gate that is no measure of the iteration."""


def iteration_metrics(
    trajectories: Path,
    gates: Sequence[Gate],
    trained: TrainReport,
    signal: IterationSignal,
    weights: Mapping[str, float],
    branches: Path,
    signals: Signals = NO_SIGNALS,
) -> Metrics:
    """Flat metrics by dotted name; rates are shares of the scorable rollouts, `training.*` are the trainer's.

    `branches` is the report on sessions that were sampled for credit alone, where there were any; `weights` are those
    that the iteration was credited by, `signals` what terms beside the outcome said.
    """
    rollouts = read_trajectories(trajectories)
    mismatch = next((gate.evidence for gate in gates if gate.name == "rollout mismatch"), {})
    return {
        **_success(rollouts),
        "reward": _mean([scalar_reward(t, weights, signals.proxies) for t in rollouts if t.scorable]),
        **{f"reward.weight.{term}": weight for term, weight in weights.items()},
        **_terms(rollouts, signals),
        **_behaviour(rollouts),
        **_branches(branches),
        "staleness.mean_versions": _staleness(rollouts),
        **_context(rollouts),
        **{f"mismatch.{name}": _number(value) for name, value in mismatch.items() if name not in NO_METRICS},
        **{f"groups.{name}": value for name, value in signal.groups.model_dump().items()},
        **{f"failures.{kind}": count for kind, count in signal.failures.items()},
        **{f"training.{name}": _number(value) for name, value in trained.model_dump().items() if name != "digest"},
    }


def _success(rollouts: Sequence[Trajectory]) -> Metrics:
    parts = {h: [bool(t.outcome) for t in rollouts if t.scorable and t.horizon == h] for h in HORIZONS}
    found: Metrics = {f"success.{horizon}": _mean(part) for horizon, part in parts.items()}
    found["success.all"] = _mean([outcome for part in parts.values() for outcome in part])
    return found | {f"rollouts.{horizon}": len(part) for horizon, part in parts.items()}


def _terms(rollouts: Sequence[Trajectory], signals: Signals) -> Metrics:
    """Means of the terms beside the outcome, before weights: the verified one, then those that are not verified."""
    verified = [t.rewards["process"] for t in rollouts if t.scorable and "process" in t.rewards]
    names = [*signals.potentials, *(["proxy"] if signals.proxies else [])]
    unverified = {f"reward.unverified.{name}": _mean(list(signals.by_rollout(name).values())) for name in names}
    return {"reward.verified.process": _mean(verified), **unverified}


def _behaviour(rollouts: Sequence[Trajectory]) -> Metrics:
    endings = Counter(t.status for t in rollouts)
    return {
        "rollouts.all": len(rollouts),
        "rollouts.unscorable": sum(not t.scorable for t in rollouts),
        "tokens.sampled": sum(t.sampled_tokens for t in rollouts),
        "turns": _mean([len(t.turns) for t in rollouts]),
        "malformed_calls": sum(t.malformed_calls for t in rollouts),
        "tool_errors": sum(t.tool_errors for t in rollouts),
        "submitted": _mean([t.submitted for t in rollouts]),
        **{f"endings.{status}": count for status, count in sorted(endings.items())},
    }


def _branches(path: Path) -> Metrics:
    """What sampling decisions again cost, beside the rollouts."""
    if not path.exists():
        return {"tokens.branched": 0}
    report = BranchReport.model_validate(read_json(path))
    return {
        "tokens.branched": report.tokens,
        "branches.sessions": report.sessions,
        "branches.lost": report.lost,
        "branches.decisions": sum(report.decisions.values()),
        "branches.skipped": sum(report.skipped.values()),
    }


def _staleness(rollouts: Sequence[Trajectory]) -> float | None:
    """By how many policy versions a sampled token is behind its iteration's, on average."""
    turns = [(turn, turn.policy_version or t.policy_version, t.iteration) for t in rollouts for turn in t.turns]
    tokens = sum(turn.completion_tokens for turn, _, _ in turns)
    behind = sum(turn.completion_tokens * (now - policy_number(version)) for turn, version, now in turns)
    return behind / tokens if tokens else None


def _context(rollouts: Sequence[Trajectory]) -> Metrics:
    """What the engine read, and where the contexts' tokens came from: shares of all turns' contexts together."""
    turns = [turn for t in rollouts for turn in t.turns]
    read, cached = sum(turn.prompt_tokens for turn in turns), sum(turn.cached_tokens for turn in turns)
    origins: Counter[str] = Counter()
    for turn in turns:
        origins.update(turn.origins)
    broken = {(t.id, turn.segment) for t in rollouts for turn in t.turns if not turn.prompt_kept}
    return {
        "context.prefilled": read - cached,
        "context.cached": cached,
        "context.generated": sum(turn.completion_tokens for turn in turns),
        **{f"context.share.{origin}": origins[origin] / read if read else None for origin in ORIGINS},
        "context.segments": _mean([1 + max(turn.segment for turn in t.turns) for t in rollouts if t.turns]),
        "context.summaries": sum(turn.purpose == "summary" for turn in turns),
        "context.violations": len(broken),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _number(value: object) -> float | int | None:
    return value if isinstance(value, int | float) else None
