"""What the sessions so far say about each metric.

sessions -> values of each arm, by stage -> compare -> Comparison by metric
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data_contracts.gates import Verdict
from tasks.canary.analysis import Comparison, compare
from tasks.canary.config import CanaryConfig, Metric
from tasks.canary.sessions import ARMS, OF_SERVED, LiveSession, metric_value

Values = dict[str, list[tuple[int, float]]]
"""By arm: the stage and the figure of each session that has one, in the order in which the sessions ended."""


def compare_all(sessions: Sequence[LiveSession], config: CanaryConfig) -> dict[str, Comparison]:
    """Every metric's comparison, by name; `sessions` in the order in which they ended.

    A candidate that gets everything is compared once more, by its sessions since then alone: one that breaks so late
    would hide behind all that went well before. Where that fails, it is the metric's comparison. The chance of a false
    alarm is split over all comparisons that may roll back.
    """
    late = _late(sessions, config)
    watched = sum(metric.criticality != "shown" for metric in config.metrics)
    alpha = config.alpha / (watched if config.compared == len(config.stages) - 1 else 2 * watched)
    found = {metric.name: _compared(sessions, metric, config, alpha) for metric in config.metrics}
    since = {metric.name: _compared(late, metric, config, alpha) for metric in config.metrics} if late else {}
    return found | {name: comparison for name, comparison in since.items() if comparison.verdict is Verdict.FAIL}


def failed(comparisons: dict[str, Comparison], config: CanaryConfig) -> Comparison | None:
    """The first metric that rolls back."""
    watched = (comparisons[metric.name] for metric in config.metrics if metric.criticality != "shown")
    return next((comparison for comparison in watched if comparison.verdict is Verdict.FAIL), None)


def missing(comparisons: dict[str, Comparison], config: CanaryConfig) -> list[Comparison]:
    """The metrics that stand in the way of a promotion: no PASS where one is needed, no data where one guards."""
    waived = _waived(comparisons, config)
    found = [(metric.criticality, comparisons[metric.name]) for metric in config.metrics if metric.name not in waived]
    return [
        comparison
        for criticality, comparison in found
        if (criticality == "promotes" and comparison.verdict is not Verdict.PASS)
        or (criticality == "guards" and comparison.lower is None)
    ]


def proof(comparisons: dict[str, Comparison], config: CanaryConfig) -> str:
    """What a promotion rests on, in one sentence."""
    proven = [comparisons[metric.name] for metric in config.metrics if metric.criticality == "promotes"]
    return "; ".join(comparison.reason for comparison in proven if comparison.verdict is Verdict.PASS)


def _compared(sessions: Sequence[LiveSession], metric: Metric, config: CanaryConfig, alpha: float) -> Comparison:
    values = _values(sessions, metric, config)
    if metric.name == "latency_p95":
        values = _slow(values, config.tail_sessions)
    figures, stages = ([[pair[i] for pair in values[arm]] for arm in ARMS] for i in (1, 0))
    return compare(
        figures[0],
        figures[1],
        metric,
        alpha=alpha,
        tuned_sessions=config.tuned_sessions,
        minimum=metric.minimum or config.minimum_sessions,
        strata=(stages[0], stages[1]),
    )


def _late(sessions: Sequence[LiveSession], config: CanaryConfig) -> list[LiveSession]:
    """The candidate's sessions since it gets everything, and the champion's of the stage before; none before then."""
    since = [s for s in sessions if s.arm == "candidate" and s.stage > config.compared]
    return [s for s in sessions if s.arm == "champion" and s.stage == config.compared] + since if since else []


def _values(sessions: Sequence[LiveSession], metric: Metric, config: CanaryConfig) -> Values:
    """Where the candidate gets everything, the champion's sessions of the stage before are what it is compared with."""
    values: Values = {arm: [] for arm in ARMS}
    last = config.compared
    for session in sessions:
        value = metric_value(session, metric.name)
        if value is not None:
            values[session.arm].append((min(session.stage, last), value))
    return values


def _slow(values: Values, reference: int) -> Values:
    """1 for a session slower than the champion's 95th percentile, else 0.

    A tail at the same height is the same share above it (Howard and Ramdas 2022, "Sequential estimation of quantiles
    with applications to A/B testing and best-arm identification", Bernoulli), and a share is a mean, which `compare`
    has a sequence for. The threshold comes from the champion's first `reference` sessions, which are then left out:
    given it, what follows are independent draws of 0 or 1.
    """
    first, rest = values["champion"][:reference], values["champion"][reference:]
    if len(first) < reference:
        return {arm: [] for arm in ARMS}
    limit = float(np.quantile([value for _, value in first], 0.95, method="higher"))
    later = {"champion": rest, "candidate": values["candidate"]}
    return {arm: [(stage, float(value > limit)) for stage, value in later[arm]] for arm in ARMS}


def _waived(comparisons: dict[str, Comparison], config: CanaryConfig) -> frozenset[str]:
    """Metrics that cannot be had because the champion is broken.

    A champion that is proven to lose more sessions than the candidate, and that served too few to compare by, must not
    block its replacement. The metric's own verdict stays INCONCLUSIVE.
    """
    errors = comparisons.get("errors")
    if errors is None or errors.lower is None or errors.lower <= 0:
        return frozenset()
    few = config.minimum_sessions
    return frozenset(
        name
        for name, comparison in comparisons.items()
        if name in OF_SERVED and comparison.lower is None and (comparison.n_champion < few <= comparison.n_candidate)
    )
