"""One check's figure: how far the window lies from the reference, and how often chance alone does that.

columns of two tables -> values that are there -> effect, p (uncorrected)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from tasks.drift.config import Check, Kind
from tasks.drift.permutation import calibration_error, energy, permutation_test, total_variation
from tasks.drift.text import embed

ALTERNATIVES = {"any": "two-sided", "rise": "greater", "fall": "less"}
MOST_TEXTS = 600
"""Texts of a side that are compared with all others; the time grows with the square."""
INTERVAL_DRAWS = 100
NONE = "(none)"
"""The name in a bag without names."""


class Measure(NamedTuple):
    """An effect with its p; `low` and `high`: a 95 % interval of the window's figure, where one was taken."""

    effect: float
    p: float
    reference: float | None = None
    window: float | None = None
    low: float | None = None
    high: float | None = None


def present(frame: pd.DataFrame, check: Check) -> pd.DataFrame:
    """The rows of which the check can say something; its column as text, lists, or finite floats."""
    column = frame[check.column]
    if check.kind in ("mix", "bag", "cloud"):
        return frame[column.notna()]
    numbers = pd.to_numeric(column, errors="coerce").astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
    kept = np.isfinite(numbers)
    if check.kind == "calibration":
        kept &= pd.to_numeric(frame["residual"], errors="coerce").notna().to_numpy()
    return frame[kept].assign(**{check.column: numbers[kept]})


def measure(check: Check, reference: pd.DataFrame, window: pd.DataFrame, permutations: int) -> Measure:
    """The check's figure from rows that are `present`; there is at least one on each side."""
    if check.kind == "calibration":
        return _calibration(reference, window, permutations)
    a, b = reference[check.column].to_numpy(), window[check.column].to_numpy()
    if check.kind in _BY_PERMUTATION:
        return _BY_PERMUTATION[check.kind](a, b, permutations)
    if check.kind == "mix":
        return _mix(a.astype(str), b.astype(str))
    return _BY_DIRECTION[check.kind](a, b, ALTERNATIVES[check.direction])


def rate(a: NDArray[np.float64], b: NDArray[np.float64], alternative: str) -> Measure:
    """Difference of the shares of ones in the direction asked for, by Fisher's exact test."""
    ones = int((b != 0).sum()), int((a != 0).sum())
    table = [[ones[0], b.size - ones[0]], [ones[1], a.size - ones[1]]]
    before, now = ones[1] / a.size, ones[0] / b.size
    p = float(stats.fisher_exact(table, alternative=alternative).pvalue)
    return Measure(_directed(now - before, alternative), p, before, now)


def shares(bags: NDArray[np.object_]) -> list[dict[str, float]]:
    """Each list's names with their share of it."""
    found = []
    for bag in bags:
        names = [str(name) for name in bag] or [NONE]
        found.append({name: names.count(name) / len(names) for name in set(names)})
    return found


def _mix(a: NDArray[np.str_], b: NDArray[np.str_]) -> Measure:
    """Cramer's V of the 2 x categories table; one category in both is no difference."""
    categories = np.union1d(a, b)
    if categories.size == 1:
        return Measure(0.0, 1.0)
    table = np.array([[(values == category).sum() for category in categories] for values in (a, b)])
    result = stats.chi2_contingency(table, correction=False)
    return Measure(math.sqrt(float(result.statistic) / table.sum()), float(result.pvalue))


def _shape(a: NDArray[np.float64], b: NDArray[np.float64], alternative: str) -> Measure:
    """Kolmogorov-Smirnov statistic. Values that rise have a distribution function that lies below."""
    below = {"two-sided": "two-sided", "greater": "less", "less": "greater"}[alternative]
    result = stats.ks_2samp(b, a, alternative=below, method="asymp")
    return Measure(float(result.statistic), float(result.pvalue), float(a.mean()), float(b.mean()))


def _mean(a: NDArray[np.float64], b: NDArray[np.float64], alternative: str) -> Measure:
    """Difference of the means in the direction asked for, by Welch's test; no spread at all is compared as it is."""
    before, now = float(a.mean()), float(b.mean())
    if a.std() + b.std() == 0.0:
        p = 1.0 if before == now else 0.0
    else:
        p = float(stats.ttest_ind(b, a, equal_var=False, alternative=alternative).pvalue)
    return Measure(_directed(now - before, alternative), p, before, now)


def _bag(a: NDArray[np.object_], b: NDArray[np.object_], permutations: int) -> Measure:
    table = pd.DataFrame(shares(np.concatenate([a, b]))).fillna(0.0).to_numpy(dtype=np.float64)
    found = permutation_test(total_variation(table), a.size, b.size, permutations)
    return Measure(found.value, found.p)


def _cloud(a: NDArray[np.object_], b: NDArray[np.object_], permutations: int) -> Measure:
    a, b = _thinned(a), _thinned(b)
    found = permutation_test(energy(embed([*a, *b])), a.size, b.size, permutations)
    return Measure(max(found.value, 0.0), found.p)


def _calibration(reference: pd.DataFrame, window: pd.DataFrame, permutations: int) -> Measure:
    """Rise of the expected calibration error; the interval is the window's own, by bootstrap."""
    both = pd.concat([reference[["predicted", "residual"]], window[["predicted", "residual"]]]).to_numpy(np.float64)
    n = len(reference)
    found = permutation_test(calibration_error(*both.T), n, len(window), permutations)
    rng = np.random.default_rng(0)
    draws = [_ece(both[n + rng.integers(0, len(window), len(window))]) for _ in range(INTERVAL_DRAWS)]
    low, high = np.quantile(draws, [0.025, 0.975])
    effect = max(found.value - found.chance, 0.0)
    return Measure(effect, found.p, _ece(both[:n]), _ece(both[n:]), float(low), float(high))


def _ece(predicted_residual_N2: NDArray[np.float64]) -> float:
    from tasks.reward.calibration import ece

    predicted, residual = predicted_residual_N2.T
    return ece(predicted, predicted + residual)


def _thinned(texts: NDArray[np.object_]) -> NDArray[np.object_]:
    """At most MOST_TEXTS of them, evenly."""
    if texts.size <= MOST_TEXTS:
        return texts
    return texts[np.linspace(0, texts.size - 1, MOST_TEXTS).astype(int)]


def _directed(rise: float, alternative: str) -> float:
    return {"two-sided": abs(rise), "greater": rise, "less": -rise}[alternative]


_BY_DIRECTION: Mapping[Kind, Callable[..., Measure]] = {"rate": rate, "shape": _shape, "mean": _mean}
_BY_PERMUTATION: Mapping[Kind, Callable[..., Measure]] = {"bag": _bag, "cloud": _cloud}
