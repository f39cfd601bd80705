"""Is one policy better than another: the same problems, the same rollout indices, side by side.

trajectories before + trajectories after -> PairedReport per horizon; whether it is enough is the release gate's to say
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pydantic import Field

from data_contracts.records import HORIZONS, Record, Trajectory
from tasks.evaluation.intervals import mcnemar_exact, paired_interval
from tasks.evaluation.report import mode_of

_Key = tuple[str, str, int]


class PairedDifference(Record):
    """After minus before, in verified success; each problem has one vote."""

    pairs: int
    problems: int
    before: float | None = Field(description="success rate before, over the pairs")
    after: float | None = Field(description="success rate after, over the pairs")
    difference: float | None = Field(description="mean over the problems of their mean difference")
    low: float = Field(description="lower end of the difference's 95 % interval")
    high: float = Field(description="upper end of the difference's 95 % interval")
    gained: int = Field(description="pairs failed before, passed after")
    lost: int = Field(description="pairs passed before, failed after")
    p_value: float = Field(description="McNemar's exact test on the pairs, taken as independent")


class PairedReport(Record):
    """Differences per horizon and over all, and what could not be paired."""

    horizons: dict[str, PairedDifference]
    excluded: int = Field(description="pairs with a rollout that could not be scored")
    unmatched: int = Field(description="rollouts that the other side lacks")


def paired(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> PairedReport:
    """Pair rollouts by mode, problem and rollout index. Raises ValueError when one side holds such a key twice."""
    first, second = _by_key(before), _by_key(after)
    both = [(first[key], second[key]) for key in sorted(first.keys() & second.keys())]
    scored = [(a, b) for a, b in both if a.scorable and b.scorable]
    parts = {h: [pair for pair in scored if pair[0].horizon == h] for h in HORIZONS}
    return PairedReport(
        horizons={**{h: _difference(part) for h, part in parts.items()}, "all": _difference(scored)},
        excluded=len(both) - len(scored),
        unmatched=len(first.keys() ^ second.keys()),
    )


def _by_key(trajectories: Sequence[Trajectory]) -> dict[_Key, Trajectory]:
    found: dict[_Key, Trajectory] = {}
    for trajectory in trajectories:
        key = (mode_of(trajectory), trajectory.problem_id, trajectory.rollout_index)
        if key in found:
            raise ValueError(f"problem {key[1]} has rollout {key[2]} twice: give one policy's rollouts a side")
        found[key] = trajectory
    return found


def _difference(pairs: Sequence[tuple[Trajectory, Trajectory]]) -> PairedDifference:
    of_problem: dict[str, list[int]] = defaultdict(list)
    for a, b in pairs:
        of_problem[a.problem_id].append(int(bool(b.outcome)) - int(bool(a.outcome)))
    means = [sum(values) / len(values) for values in of_problem.values()]
    low, high = paired_interval(means)
    flat = [value for values in of_problem.values() for value in values]
    gained, lost = flat.count(1), flat.count(-1)
    n = len(pairs)
    return PairedDifference(
        pairs=n,
        problems=len(means),
        before=sum(bool(a.outcome) for a, _ in pairs) / n if n else None,
        after=sum(bool(b.outcome) for _, b in pairs) / n if n else None,
        difference=sum(means) / len(means) if means else None,
        low=low,
        high=high,
        gained=gained,
        lost=lost,
        p_value=mcnemar_exact(gained, lost),
    )
