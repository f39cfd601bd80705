"""Arms that spent the same tokens in different ways, compared on the same held-out problems.

sampled held-out trajectories at points of each arm -> success with interval, and the paired difference to the reference
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from data_contracts.records import HORIZONS, Record, Trajectory
from tasks.evaluation.intervals import clustered_wilson
from tasks.evaluation.paired import PairedDifference, paired


class Point(Record):
    """One arm, measured once: `arm` names what it does, `seed` which of its repeats this is."""

    arm: str
    seed: int
    share: float = Field(description="share of the token budget at which it was measured, 0 to 1")
    tokens: int = Field(description="tokens it had sampled for training by then")
    trajectories: tuple[Trajectory, ...]


class ArmSuccess(Record):
    """Success of one arm at one point, over its seeds; a problem of one seed is one cluster."""

    arm: str
    horizon: str
    share: float
    tokens: float = Field(description="mean over the seeds")
    seeds: int
    n: int
    rate: float
    low: float
    high: float
    against: PairedDifference | None = Field(
        default=None, description="this arm minus the reference, at the end: the same seeds, problems and rollouts"
    )


def compare_arms(points: Sequence[Point], reference: str) -> list[ArmSuccess]:
    """A row per arm, horizon with rollouts, and point; at the last point with its difference to `reference`."""
    rows: list[ArmSuccess] = []
    for arm in dict.fromkeys(point.arm for point in points):
        for share in sorted({point.share for point in points}):
            mine = [point for point in points if (point.arm, point.share) == (arm, share)]
            base = [point for point in points if (point.arm, point.share) == (reference, share)] if share == 1 else []
            if mine:
                rows += _rows(mine, base if arm != reference else [])
    return rows


def tokens_to(points: Sequence[Point], arm: str, horizon: str, level: float) -> list[float | None]:
    """Tokens that each seed of an arm had sampled when its success first reached `level`; None: it did not.

    Between two measurements the curve is taken as a straight line.
    """
    mine = [point for point in points if point.arm == arm]
    return [_crossing([p for p in mine if p.seed == seed], horizon, level) for seed in sorted({p.seed for p in mine})]


def _crossing(points: Sequence[Point], horizon: str, level: float) -> float | None:
    before: tuple[float, float] | None = None
    for point in sorted(points, key=lambda point: point.share):
        scored = [bool(t.outcome) for t in point.trajectories if t.scorable and horizon in (t.horizon, "all")]
        if not scored:
            continue
        tokens, rate = float(point.tokens), sum(scored) / len(scored)
        if rate >= level:
            if before is None:
                return tokens
            return before[0] + (tokens - before[0]) * (level - before[1]) / (rate - before[1])
        before = tokens, rate
    return None


def _rows(mine: Sequence[Point], base: Sequence[Point]) -> list[ArmSuccess]:
    seeds = {point.seed for point in base}
    both = [point for point in mine if point.seed in seeds]
    differences = paired(_pooled(base), _pooled(both)).horizons if both else {}
    tokens = sum(point.tokens for point in mine) / len(mine)
    rows = []
    for horizon in (*HORIZONS, "all"):
        scored = [t for t in _pooled(mine) if t.scorable and horizon in (t.horizon, "all")]
        if not scored:
            continue
        outcomes = [bool(trajectory.outcome) for trajectory in scored]
        low, high = clustered_wilson(outcomes, [trajectory.problem_id for trajectory in scored])
        rows.append(
            ArmSuccess(
                arm=mine[0].arm,
                horizon=horizon,
                share=mine[0].share,
                tokens=tokens,
                seeds=len(mine),
                n=len(scored),
                rate=sum(outcomes) / len(scored),
                low=low,
                high=high,
                against=differences.get(horizon),
            )
        )
    return rows


def _pooled(points: Sequence[Point]) -> list[Trajectory]:
    """All seeds' trajectories; a problem of two seeds is two problems."""
    return [
        trajectory.model_copy(update={"problem_id": f"{point.seed}/{trajectory.problem_id}"})
        for point in points
        for trajectory in point.trajectories
    ]
