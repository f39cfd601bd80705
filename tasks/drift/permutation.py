"""Permutation tests: how often would sessions dealt out at random to reference and window differ as much?

statistic of which rows are the window's -> as observed, under random dealings -> p

Dealing stops early once enough of them differed as much (Besag and Clifford 1991): a quiet window costs little.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""From dealings [B, N], 1 where a row is the window's and 0 where it is the reference's, to B figures."""

ENOUGH = 25
BATCH = 250


class Permuted(NamedTuple):
    """`value` as observed, its mean by `chance`, and one-sided p: how often chance alone does as much or more."""

    value: float
    chance: float
    p: float


def permutation_test(statistic: Statistic, n_reference: int, n_window: int, draws: int) -> Permuted:
    """Test rows [reference, window] in this order by at most `draws` dealings; the same rows give the same answer."""
    observed_N = np.repeat([0.0, 1.0], [n_reference, n_window])
    value = float(statistic(observed_N[None])[0])
    rng = np.random.default_rng(0)
    above, done, total = 0, 0, 0.0
    while done < draws and above < ENOUGH:
        batch = min(BATCH, draws - done)
        values_B = statistic(rng.permuted(np.tile(observed_N, (batch, 1)), axis=1))
        above += int((values_B >= value - 1e-9).sum())
        total += float(values_B.sum())
        done += batch
    return Permuted(value, total / done, (above + 1) / (done + 1))


def total_variation(shares_NK: Floats) -> Statistic:
    """Half the summed differences of the mean shares [K] of both sides: 0 alike, 1 nothing in common."""
    whole_K = shares_NK.sum(axis=0)

    def statistic(window_BN: Floats) -> Floats:
        n = window_BN.sum(axis=1, keepdims=True)
        sums = window_BN @ shares_NK
        return np.asarray(0.5 * np.abs(sums / n - (whole_K - sums) / (window_BN.shape[1] - n)).sum(axis=1))

    return statistic


def energy(points_ND: Floats) -> Statistic:
    """Energy distance over twice the mean distance between the sides, at most 1; without bias, so 0 where alike."""
    squares = (points_ND**2).sum(axis=1)
    apart_NN = np.sqrt(np.maximum(squares[:, None] + squares - 2 * points_ND @ points_ND.T, 0.0)).astype(np.float32)
    np.fill_diagonal(apart_NN, 0.0)
    whole, degree_N = float(apart_NN.sum(dtype=np.float64)), apart_NN.sum(axis=1)

    def statistic(window_BN: Floats) -> Floats:
        dealt = window_BN.astype(np.float32)
        n = window_BN.sum(axis=1)
        m = window_BN.shape[1] - n
        within = np.einsum("bn,bn->b", dealt @ apart_NN, dealt, dtype=np.float64)
        across = dealt @ degree_N - within
        between = across / (n * m)
        inside = within / (n * (n - 1)) + (whole - 2 * across - within) / (m * (m - 1))
        return np.where(between > 0, (2 * between - inside) / np.maximum(2 * between, 1e-12), 0.0)

    return statistic


def calibration_error(predicted_N: Floats, residual_N: Floats, bins: int = 10) -> Statistic:
    """Expected calibration error of the window less that of the reference, in bins of equal width.

    `residual` is outcome less prediction.
    """
    bin_N = np.minimum((predicted_N * bins).astype(int), bins - 1)
    gaps_NK = np.eye(bins)[bin_N] * residual_N[:, None]

    def statistic(window_BN: Floats) -> Floats:
        n = window_BN.sum(axis=1)
        theirs = np.abs((1 - window_BN) @ gaps_NK).sum(axis=1) / (window_BN.shape[1] - n)
        return np.asarray(np.abs(window_BN @ gaps_NK).sum(axis=1) / n - theirs)

    return statistic
