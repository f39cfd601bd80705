"""How far a row of features lies from those that a model was fitted on: where it extrapolates, it is to abstain.

training features -> main directions + what they leave over -> Mahalanobis distance -> limit at a quantile
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DIRECTIONS = 32
"""Directions that are kept, at most; the rest counts as one, spread evenly (Tipping and Bishop 1999)."""


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Scaled features within `limit` of the training features are known ground."""

    directions: Floats
    """[K, F], orthonormal"""
    spread: Floats
    """[K], variance along each"""
    rest: float
    """variance along every other direction"""
    limit: float

    def distance(self, scaled: Floats) -> Floats:
        """Squared Mahalanobis distance [N] of rows [N, F] that were centred and scaled as the training rows were."""
        along_NK = scaled @ self.directions.T
        over_N = np.maximum((scaled**2).sum(axis=1) - (along_NK**2).sum(axis=1), 0.0)
        return (along_NK**2 / self.spread).sum(axis=1) + over_N / self.rest

    def covers(self, scaled: Floats) -> NDArray[np.bool_]:
        """Whether each row [N] lies within the limit."""
        return self.distance(scaled) <= self.limit


def fit_reach(train: Floats, unseen: Floats, quantile: float) -> Reach:
    """Directions of `train` [N, F]; the limit is the `quantile` of the distances of `unseen` [M, F], of other problems.

    The limit is not taken from the training rows: those are nearer to themselves than any new row is.
    """
    rows, width = train.shape
    _, singular, directions = np.linalg.svd(train, full_matrices=False)
    variance = singular**2 / rows
    kept = min(DIRECTIONS, int((variance > 1e-9).sum()))
    left = width - kept
    rest = float(variance[kept:].sum()) / left if left else 1.0
    bare = Reach(directions[:kept], variance[:kept], max(rest, 1e-9), np.inf)
    limit = float(np.quantile(bare.distance(unseen), quantile))
    return Reach(bare.directions, bare.spread, bare.rest, limit)
