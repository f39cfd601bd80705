"""What the canary does next, from nothing but the sessions so far.

sessions -> a comparison per metric -> Decision(continue | promote | rollback | hold)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from data_contracts.gates import Gate, Verdict
from data_contracts.records import Record
from tasks.canary.analysis import Comparison, compare
from tasks.canary.config import CanaryConfig, Metric
from tasks.canary.sessions import ARMS, UNATTRIBUTABLE, LiveSession, metric_value

Action = Literal["continue", "promote", "rollback", "hold"]
_OF_SERVED: frozenset[str] = frozenset({"tool_errors", "latency", "tokens"})
"""Metrics that only a session which was served has."""


class Decision(Record):
    """The next step: `share` is the candidate's share of new sessions from now on.

    `hold` ends without a promotion and leaves the share where it is; `rollback` always goes to the champion.
    """

    action: Action
    stage: int
    share: float
    reason: str
    gates: tuple[Gate, ...] = ()


def canary_decision(
    sessions: Sequence[LiveSession],
    config: CanaryConfig,
    *,
    stopped: bool = False,
    exhausted: bool = False,
    superseded: bool = False,
) -> Decision:
    """Decide on the sessions so far, in any order.

    `stopped`: sessions should have come and did not; `exhausted`: no more will come; `superseded`: a newer candidate
    arrived, so that this canary ends. A stage ends when both arms have had their sessions in it.
    """
    stage = max((session.stage for session in sessions), default=0)
    comparisons = compare_all(sessions, config)
    gates = tuple(comparison.gate() for comparison in comparisons.values())

    def decide(action: Action, share: float, reason: str, *, at: int = stage) -> Decision:
        return Decision(action=action, stage=at, share=share, reason=reason, gates=gates)

    critical = [comparisons[metric.name] for metric in config.metrics if metric.critical]
    failed = next((c for c in critical if c.verdict is Verdict.FAIL), None)
    if superseded:
        return decide("rollback", 0.0, "a newer candidate arrived: back to the champion")
    if failed is not None:
        return decide("rollback", 0.0, failed.reason)
    share, last = config.shares[stage], stage == len(config.shares) - 1
    here = [s for s in sessions if s.stage == stage and s.status not in UNATTRIBUTABLE]
    had = {arm: sum(s.arm == arm for s in here) for arm in ARMS}
    full = min(had.values()) >= config.sessions_per_stage
    waived = _waived(comparisons, critical, config)
    undecided = [c for c in critical if c.verdict is not Verdict.PASS and c.metric not in waived]
    if last and full and not undecided:
        return decide("promote", 1.0, "; ".join(c.reason for c in critical if c.metric not in waived))
    if stopped:
        return decide("hold", share, f"traffic has stopped at {len(sessions)} sessions, in stage {stage}")
    if exhausted or len(sessions) >= config.max_sessions:
        short = f"stage {stage} needs {config.sessions_per_stage} sessions of each arm"
        why = undecided[0].reason if undecided else short
        return decide("hold", share, f"{len(sessions)} sessions did not decide it: {why}")
    if full and not last:
        following = config.shares[stage + 1]
        return decide("continue", following, f"stage {stage} is done: share {following:g}", at=stage + 1)
    return decide("continue", share, f"stage {stage}: {had['champion']} and {had['candidate']} sessions so far")


def compare_all(sessions: Sequence[LiveSession], config: CanaryConfig) -> dict[str, Comparison]:
    """Every metric's comparison, by name. The chance of a false alarm is split over the critical metrics."""
    alpha = config.alpha / sum(metric.critical for metric in config.metrics)
    return {metric.name: _compare(sessions, metric, config, alpha) for metric in config.metrics}


def _compare(sessions: Sequence[LiveSession], metric: Metric, config: CanaryConfig, alpha: float) -> Comparison:
    values: dict[str, list[float]] = {arm: [] for arm in ARMS}
    stages: dict[str, list[int]] = {arm: [] for arm in ARMS}
    for session in sessions:
        value = metric_value(session, metric.name)
        if value is not None:
            values[session.arm].append(value)
            stages[session.arm].append(session.stage)
    return compare(
        values["champion"],
        values["candidate"],
        metric,
        alpha=alpha,
        tuned_sessions=config.tuned_sessions,
        minimum=config.minimum_sessions,
        strata=(stages["champion"], stages["candidate"]),
    )


def _waived(comparisons: dict[str, Comparison], critical: Sequence[Comparison], config: CanaryConfig) -> frozenset[str]:
    """Critical metrics that cannot be had because the champion is broken.

    A champion that is proven to lose more sessions than the candidate, and that served too few to compare by, must not
    block its replacement. The metric's own verdict stays INCONCLUSIVE.
    """
    errors = comparisons.get("errors")
    if errors is None or errors.lower is None or errors.lower <= 0:
        return frozenset()
    few = config.minimum_sessions
    return frozenset(c.metric for c in critical if c.metric in _OF_SERVED and c.n_champion < few <= c.n_candidate)
