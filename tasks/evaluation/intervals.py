"""Intervals and tests for success rates; all at 95 % where nothing else is said.

counts -> Wilson interval;  paired differences -> Student's interval;  discordant pairs -> exact p
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike


def wilson(successes: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """Score interval of a proportion (Wilson 1927); (0, 1) when there is no data. Counts may be effective ones."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return 0.0, 1.0
    z2 = _z(level) ** 2
    centre = (successes + z2 / 2) / (n + z2)
    half = math.sqrt(z2) / (n + z2) * math.sqrt(successes * (n - successes) / n + z2 / 4)
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def clustered_wilson(outcomes: ArrayLike, clusters: Sequence[str], level: float = 0.95) -> tuple[float, float]:
    """Wilson interval for rollouts [N] that come in problems: n is divided by the design effect, where that exceeds 1.

    Rollouts of one problem are alike, so that they tell less than as many problems would. Where all outcomes are equal
    the design effect cannot be seen: each problem then counts once.
    """
    y_N = np.asarray(outcomes, dtype=np.float64)
    if not y_N.size:
        return 0.0, 1.0
    _, cluster_N = np.unique(np.asarray(clusters), return_inverse=True)
    n, problems, rate = y_N.size, int(cluster_N.max()) + 1, float(y_N.mean())
    if problems == n:
        return wilson(float(y_N.sum()), n, level)
    if problems == 1 or rate in (0.0, 1.0):
        return wilson(rate * problems, problems, level)
    residual_G = np.bincount(cluster_N, weights=y_N - rate)
    variance = problems / (problems - 1) * float((residual_G**2).sum()) / n**2
    effective = min(n, max(rate * (1 - rate) / variance, 1.0)) if variance else n
    return wilson(rate * effective, effective, level)


def paired_interval(differences: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean of per-problem differences [G], each in -1..1; (-1, 1) when there are none.

    Two problems of difference +-1/sqrt(2) are added, as Agresti and Min do (Statistics in Medicine 24, 2005), so that
    the interval never shrinks to a point where all differences are equal.
    """
    from scipy.stats import t

    difference_G = np.asarray(differences, dtype=np.float64)
    if not difference_G.size:
        return -1.0, 1.0
    adjusted = np.concatenate([difference_G, [math.sqrt(0.5), -math.sqrt(0.5)]])
    width = float(t.ppf(0.5 + level / 2, adjusted.size - 1))
    half = width * float(adjusted.std(ddof=1)) / math.sqrt(adjusted.size)
    centre = float(adjusted.mean())
    return max(centre - half, -1.0), min(centre + half, 1.0)


def mcnemar_exact(gained: int, lost: int) -> float:
    """Two-sided exact p of the discordant pairs under a fair coin (McNemar 1947); 1 when there are none."""
    n = gained + lost
    tail = sum(math.comb(n, k) for k in range(min(gained, lost) + 1)) / 2**n
    return min(2 * tail, 1.0)


def _z(level: float) -> float:
    return NormalDist().inv_cdf(0.5 + level / 2)
