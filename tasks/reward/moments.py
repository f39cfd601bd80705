"""Sums over groups that can be added up over iterations: what the sentinel compares windows by.

one number a rollout, by group -> Moments, by horizon -> added up -> change in standard errors, correlation in groups
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from data_contracts.records import Record, Trajectory


class Moments(Record):
    """Sums over the groups of one horizon: a group counts once, by the mean over its rollouts."""

    groups: int = 0
    total: float = 0.0
    squares: float = 0.0

    def plus(self, other: Moments) -> Moments:
        """Both together."""
        return Moments(
            groups=self.groups + other.groups, total=self.total + other.total, squares=self.squares + other.squares
        )

    @property
    def mean(self) -> float:
        return self.total / self.groups if self.groups else math.nan

    @property
    def variance(self) -> float:
        """Unbiased variance of the groups' means."""
        if self.groups < 2:
            return math.nan
        return max(self.squares - self.groups * self.mean**2, 0.0) / (self.groups - 1)


class Together(Record):
    """Sums of products within groups: of a term and the outcome, both centred on their group."""

    freedom: int = 0
    term: float = 0.0
    outcome: float = 0.0
    both: float = 0.0

    def plus(self, other: Together) -> Together:
        """Both together."""
        return Together(**{name: getattr(self, name) + getattr(other, name) for name in Together.model_fields})

    @property
    def correlation(self) -> float:
        """Pearson's, within groups; NaN where one of the two never varied."""
        return self.both / math.sqrt(self.term * self.outcome) if self.term > 0 and self.outcome > 0 else math.nan

    @property
    def z(self) -> float:
        """Standard errors of the correlation from 0 (Fisher's transformation); NaN where it cannot be said."""
        if self.freedom < 4 or not math.isfinite(self.correlation):
            return math.nan
        return math.atanh(min(max(self.correlation, -0.999999), 0.999999)) * math.sqrt(self.freedom - 2)


ByHorizon = Mapping[str, Moments]


def moments(trajectories: Sequence[Trajectory], value: Mapping[str, float]) -> dict[str, Moments]:
    """Of one number a rollout, by its id; rollouts without one are left out."""
    groups: dict[tuple[str, str], list[float]] = {}
    for t in trajectories:
        if t.id in value:
            groups.setdefault((t.horizon, t.group_id), []).append(value[t.id])
    found: dict[str, Moments] = {}
    for (horizon, _), values in groups.items():
        mean = float(np.mean(values))
        found[horizon] = found.get(horizon, Moments()).plus(Moments(groups=1, total=mean, squares=mean**2))
    return found


def together(trajectories: Sequence[Trajectory], value: Mapping[str, float]) -> Together:
    """Of a term by trajectory id and the verified outcome, within groups that hold both outcomes."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for t in trajectories:
        if t.id in value and t.outcome is not None:
            groups.setdefault(t.group_id, []).append((value[t.id], float(t.outcome)))
    found = Together()
    for pairs in groups.values():
        x, y = (np.asarray(column) - np.mean(column) for column in zip(*pairs, strict=True))
        if y.any():
            sums = {"term": float(x @ x), "outcome": float(y @ y), "both": float(x @ y)}
            found = found.plus(Together(freedom=len(pairs) - 1, **sums))
    return found


def added(parts: Iterable[ByHorizon]) -> dict[str, Moments]:
    """Moments of several iterations, added up by horizon."""
    found: dict[str, Moments] = {}
    for part in parts:
        for horizon, one in part.items():
            found[horizon] = found.get(horizon, Moments()).plus(one)
    return found


def change(before: ByHorizon, now: ByHorizon) -> tuple[float, float]:
    """(difference of means, the same in standard errors) over the horizons that both have; NaN where there is none.

    Horizons are weighed by their groups, so that a shift from short to long problems is no change.
    """
    shared = [h for h in before if h in now and min(before[h].groups, now[h].groups) >= 2]
    weight = {h: before[h].groups * now[h].groups / (before[h].groups + now[h].groups) for h in shared}
    if not shared:
        return math.nan, math.nan
    whole = sum(weight.values())
    difference = sum(weight[h] / whole * (now[h].mean - before[h].mean) for h in shared)
    variance = sum(
        (weight[h] / whole) ** 2 * (side[h].variance / side[h].groups) for h in shared for side in (before, now)
    )
    if variance == 0:
        return difference, 0.0 if difference == 0 else math.copysign(math.inf, difference)
    return difference, difference / math.sqrt(variance)
