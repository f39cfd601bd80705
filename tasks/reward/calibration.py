"""Is a predicted success rate true? Measured on rollouts of problems that neither the probe nor the calibrator saw.

predictions + verified outcomes -> ECE with interval, Brier, AUROC, reliability table -> gates
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from data_contracts.gates import Gate, threshold
from data_contracts.records import HORIZONS, Horizon, Record
from models.reward_model import Prefixes
from tasks.reward.config import ProbeConfig

Floats = NDArray[np.float64]


class Bin(Record):
    """One row of the reliability table."""

    n: int
    predicted: float
    observed: float


class Calibration(Record):
    """How true the predictions of one horizon (or of all) are. None: it cannot be said of these rollouts."""

    predictions: int
    rollouts: int
    base_rate: float | None = None
    ece: float | None = None
    ece_low: float | None = None
    ece_high: float | None = None
    brier: float | None = None
    auroc: float | None = None
    table: tuple[Bin, ...] = ()


class CalibrationReport(Record):
    """Calibration over all turns of held-out rollouts, per horizon and policy version, and at the rollouts' ends.

    What the model abstains on is in none of them but in `abstained`.
    """

    all: Calibration
    ends: Calibration
    horizons: dict[Horizon, Calibration]
    versions: dict[str, Calibration]
    abstained: int = 0


def reliability(predicted: ArrayLike, outcomes: ArrayLike, bins: int = 10) -> list[Bin]:
    """Equal-mass bins over the sorted predictions [N]; equal predictions are never split between bins."""
    p_N, y_N = _pair(predicted, outcomes)
    order = np.argsort(p_N, kind="stable")
    p_N, y_N = p_N[order], y_N[order]
    # A tie across an edge goes to one bin whole: otherwise the order of equal predictions would decide.
    cuts = [round(i * p_N.size / bins) for i in range(1, bins)] if p_N.size >= bins else []
    edges = np.unique(np.searchsorted(p_N, p_N[cuts])) if cuts else np.array([], dtype=np.intp)
    parts = zip(np.split(p_N, edges), np.split(y_N, edges), strict=True)
    return [Bin(n=p.size, predicted=float(p.mean()), observed=float(y.mean())) for p, y in parts if p.size]


def ece(predicted: ArrayLike, outcomes: ArrayLike, bins: int = 10) -> float:
    """Expected calibration error: mean |predicted - observed| over equal-mass bins, weighed by size; NaN when empty."""
    table = reliability(predicted, outcomes, bins)
    n = sum(row.n for row in table)
    return sum(row.n * abs(row.predicted - row.observed) for row in table) / n if n else math.nan


def brier(predicted: ArrayLike, outcomes: ArrayLike) -> float:
    """Mean squared difference of prediction and outcome (Brier 1950); NaN when empty."""
    p_N, y_N = _pair(predicted, outcomes)
    return float(((p_N - y_N) ** 2).mean()) if p_N.size else math.nan


def auroc(predicted: ArrayLike, outcomes: ArrayLike) -> float:
    """Chance that a success is predicted above a failure, ties counting half; NaN when one of the two is missing."""
    p_N, y_N = _pair(predicted, outcomes)
    positives = float(y_N.sum())
    negatives = y_N.size - positives
    if not positives or not negatives:
        return math.nan
    rank_sum = float(rankdata(p_N)[y_N == 1].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def ece_interval(
    predicted: ArrayLike, outcomes: ArrayLike, clusters: Sequence[str], *, bins: int, bootstraps: int, seed: int
) -> tuple[float, float]:
    """95 % percentile interval of the ECE, resampling whole problems: rollouts of one problem are alike."""
    p_N, y_N = _pair(predicted, outcomes)
    names, cluster_N = np.unique(np.asarray(clusters), return_inverse=True)
    rows = [np.flatnonzero(cluster_N == i) for i in range(names.size)]
    generator = np.random.default_rng(seed)
    draws = []
    for _ in range(bootstraps):
        chosen = np.concatenate([rows[i] for i in generator.integers(0, names.size, names.size)])
        draws.append(ece(p_N[chosen], y_N[chosen], bins))
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def calibration_report(
    predicted: ArrayLike, known: ArrayLike, prefixes: Prefixes, config: ProbeConfig
) -> CalibrationReport:
    """Measure predictions [N], one a turn boundary, against their rollout's verified outcome, where `known` [N]."""
    p_N, y_N = _pair(predicted, prefixes.outcomes)
    known_N = np.asarray(known, dtype=bool)
    horizon_N, version_N, problem_N, rollout_N = (
        np.asarray(column, dtype=object)
        for column in (prefixes.horizons, prefixes.versions, prefixes.problem_ids, prefixes.trajectory_ids)
    )
    last = {name: row for row, name in enumerate(prefixes.trajectory_ids)}
    end_N = np.isin(np.arange(p_N.size), list(last.values()))

    def part(keep: NDArray[np.bool_]) -> Calibration:
        rows = keep & known_N
        return _measure(p_N[rows], y_N[rows], problem_N[rows].tolist(), set(rollout_N[rows].tolist()), config)

    return CalibrationReport(
        all=part(np.ones(p_N.size, dtype=bool)),
        ends=part(end_N),
        horizons={h: part(horizon_N == h) for h in HORIZONS},
        versions={version: part(version_N == version) for version in sorted(set(prefixes.versions))},
        abstained=int((~known_N).sum()),
    )


def calibration_gate(report: CalibrationReport, config: ProbeConfig) -> list[Gate]:
    """ECE at most, AUROC at least, each on all held-out rollouts; too few of them are INCONCLUSIVE."""
    measured, need = report.all, config.minimum_rollouts
    n = measured.rollouts
    return [
        threshold("reward.ece", measured.ece, config.ece_limit, kind="at_most", n=n, minimum_n=need),
        threshold("reward.auroc", measured.auroc, config.auroc_limit, kind="at_least", n=n, minimum_n=need),
    ]


def _measure(p_N: Floats, y_N: Floats, problems: list[str], rollouts: set[str], config: ProbeConfig) -> Calibration:
    if not p_N.size:
        return Calibration(predictions=0, rollouts=0)
    low, high = ece_interval(p_N, y_N, problems, bins=config.bins, bootstraps=config.bootstraps, seed=config.seed)
    area = auroc(p_N, y_N)
    return Calibration(
        predictions=p_N.size,
        rollouts=len(rollouts),
        base_rate=float(y_N.mean()),
        ece=ece(p_N, y_N, config.bins),
        ece_low=low,
        ece_high=high,
        brier=brier(p_N, y_N),
        auroc=area if math.isfinite(area) else None,
        table=tuple(reliability(p_N, y_N, config.bins)),
    )


def _pair(predicted: ArrayLike, outcomes: ArrayLike) -> tuple[Floats, Floats]:
    p_N, y_N = (np.asarray(column, dtype=np.float64).reshape(-1) for column in (predicted, outcomes))
    if p_N.shape != y_N.shape:
        raise ValueError(f"{p_N.size} predictions but {y_N.size} outcomes")
    if not ((p_N >= 0) & (p_N <= 1)).all():
        raise ValueError("a prediction is no probability: it lies outside 0 to 1 or is NaN")
    if not np.isin(y_N, (0.0, 1.0)).all():
        raise ValueError("an outcome is neither success nor failure: leave unscorable rollouts out")
    return p_N, y_N
