"""From a raw score to a probability: isotonic or Platt's map, whichever predicts unseen problems better.

logits + outcomes, by problem -> cross-validated Brier score of both maps -> the better one, fitted on all
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Kind = Literal["isotonic", "platt"]
FOLDS = 5


@dataclass(frozen=True, slots=True)
class Choice:
    """The map that was taken, and the Brier score of each on problems that it was not fitted on; None: not compared."""

    kind: Kind
    isotonic: float | None
    platt: float | None

    @property
    def by(self) -> float | None:
        """By how much the better one's Brier score is lower."""
        return None if self.isotonic is None or self.platt is None else abs(self.isotonic - self.platt)

    def told(self) -> dict[str, Any]:
        """As it is written to calibration.json."""
        return {**asdict(self), "by": self.by}


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """P = linear between knots of sigmoid(slope * logit + offset)."""

    slope: float
    offset: float
    knots_x: Floats
    knots_y: Floats

    def __call__(self, logits: Floats) -> Floats:
        """Probabilities [N] of logits [N]."""
        return np.interp(sigmoid(self.slope * logits + self.offset), self.knots_x, self.knots_y)


def sigmoid(logits: Floats) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * logits))


def isotonic(logits: Floats, outcomes: Floats, votes: Floats, rollouts: int) -> Map:
    """The best map that never falls; never certain: n rollouts of one kind show a rate of (n + 1) / (n + 2) at most."""
    from sklearn.isotonic import IsotonicRegression

    found = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(sigmoid(logits), outcomes, votes)
    margin = 1.0 / (rollouts + 2)
    return Map(1.0, 0.0, found.X_thresholds_, np.clip(found.y_thresholds_, margin, 1.0 - margin))


def platt(logits: Floats, outcomes: Floats, votes: Floats, rollouts: int) -> Map:
    """A logistic curve over the logit (Platt 1999); `rollouts` bounds its certainty as it does the isotonic map's."""
    from sklearn.linear_model import LogisticRegression

    found = LogisticRegression(C=1e4).fit(logits[:, None], outcomes.astype(int), sample_weight=votes)
    margin = 1.0 / (rollouts + 2)
    ends = np.array([margin, 1.0 - margin])
    return Map(float(found.coef_[0, 0]), float(found.intercept_[0]), ends, ends)


MAPS: dict[Kind, Callable[[Floats, Floats, Floats, int], Map]] = {"isotonic": isotonic, "platt": platt}


def better_map(
    logits: Floats, outcomes: Sequence[bool], votes: Floats, problems: Sequence[str], rollouts: Sequence[str]
) -> tuple[Map, Choice]:
    """Compare both on folds that share no problem, and fit the better one on all rows [N]; a tie goes to Platt.

    With fewer than two problems on either side of every fold, Platt's is taken: it has two parameters.
    """
    y_N, rollout_N = np.asarray(outcomes, dtype=np.float64), np.asarray(rollouts)
    scores = {kind: _cross_validated(kind, logits, y_N, votes, problems, rollout_N) for kind in MAPS}
    first, second = scores["isotonic"], scores["platt"]
    kind: Kind = "isotonic" if first is not None and second is not None and first < second else "platt"
    fitted = MAPS[kind](logits, y_N, votes, np.unique(rollout_N).size)
    return fitted, Choice(kind=kind, isotonic=first, platt=second)


def _cross_validated(
    kind: Kind, logits: Floats, y_N: Floats, votes: Floats, problems: Sequence[str], rollout_N: NDArray[Any]
) -> float | None:
    """Brier score on left-out problems, a rollout with one vote; None where no fold can be judged."""
    from sklearn.model_selection import GroupKFold

    folds = min(FOLDS, len(set(problems)))
    if folds < 2:
        return None
    errors, weights = 0.0, 0.0
    for kept, left in GroupKFold(folds).split(logits, y_N, problems):
        if len(set(y_N[kept].tolist())) == 2:
            fitted = MAPS[kind](logits[kept], y_N[kept], votes[kept], np.unique(rollout_N[kept]).size)
            errors += float(votes[left] @ (fitted(logits[left]) - y_N[left]) ** 2)
            weights += float(votes[left].sum())
    return errors / weights if weights else None
