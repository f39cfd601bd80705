"""A window of live sessions against the release's pinned reference: has anything drifted?

reference table, window table -> effect and p per check -> Holm's correction over the checks -> gates

Drift is an effect worth naming and a corrected p below alpha, both: with many sessions any difference is significant,
with few any difference is large. What could not be measured is INCONCLUSIVE; missing values are a check of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from data_contracts.gates import Gate, Verdict
from data_contracts.records import Record
from tasks.drift.config import Check, DriftConfig

MISSING = "missing"
_ALTERNATIVES = {"any": "two-sided", "rise": "greater", "fall": "less"}


class Row(Record):
    """One check as measured: `reference` and `window` are means, shares, or None for a mix."""

    check: str
    verdict: Verdict
    reason: str
    n_reference: int
    n_window: int
    reference: float | None = None
    window: float | None = None
    effect: float | None = None
    limit: float
    p: float | None = None
    corrected_p: float | None = None

    def gate(self) -> Gate:
        """The row as a gate; PASS means that no drift was found where it would have been."""
        evidence = self.model_dump(exclude={"check", "verdict", "reason"})
        return Gate(name=f"drift_{self.check}", verdict=self.verdict, reason=self.reason, evidence=evidence)


class DriftReport(Record):
    """All checks of one window."""

    rows: tuple[Row, ...]

    @property
    def verdict(self) -> Verdict:
        """FAIL when any check drifted, else PASS only when every check could tell."""
        verdicts = {row.verdict for row in self.rows}
        if Verdict.FAIL in verdicts:
            return Verdict.FAIL
        return Verdict.PASS if verdicts == {Verdict.PASS} else Verdict.INCONCLUSIVE

    @property
    def gates(self) -> tuple[Gate, ...]:
        return tuple(row.gate() for row in self.rows)

    def table(self) -> pd.DataFrame:
        """One line a check."""
        return pd.DataFrame([row.model_dump() for row in self.rows])


class _Measured(NamedTuple):
    """A check before the correction; `effect` None: not measurable, and `why`."""

    check: str
    limit: float
    n_reference: int
    n_window: int
    reference: float | None = None
    window: float | None = None
    effect: float | None = None
    p: float | None = None
    why: str = ""


def drift_checks(reference: pd.DataFrame, window: pd.DataFrame, config: DriftConfig) -> DriftReport:
    """Compare two tables of sessions, one row a session, columns as the checks name them (None or NaN: missing)."""
    measured = [_measure(check, reference, window, config) for check in config.checks]
    measured.append(_missing(reference, window, config))
    judged = [m for m in measured if m.p is not None]
    corrected = dict(zip((m.check for m in judged), holm([m.p or 0.0 for m in judged]), strict=True))
    return DriftReport(rows=tuple(_row(m, corrected.get(m.check), config.alpha) for m in measured))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.minimum(1.0, np.maximum.accumulate(p[order] * (p.size - np.arange(p.size))))
    adjusted = np.empty_like(p)
    adjusted[order] = stepped
    return [float(value) for value in adjusted]


def persistent(history: Sequence[Verdict], *, k: int, n: int) -> bool:
    """Whether at least `k` of the last `n` windows (oldest first) drifted; an INCONCLUSIVE one is no drift."""
    if not 1 <= k <= n:
        raise ValueError(f"k = {k} of n = {n}: k lies between 1 and n")
    return sum(verdict is Verdict.FAIL for verdict in history[-n:]) >= k


def _measure(check: Check, reference: pd.DataFrame, window: pd.DataFrame, config: DriftConfig) -> _Measured:
    absent = [name for name, frame in (("reference", reference), ("window", window)) if check.column not in frame]
    if absent:
        why = f"the {' and the '.join(absent)} has no column {check.column}"
        return _Measured(check.name, check.effect, 0, 0, why=why)
    a, b = _present(reference[check.column], check), _present(window[check.column], check)
    counts = _Measured(check.name, check.effect, a.size, b.size)
    if min(a.size, b.size) < config.minimum:
        why = f"{b.size} values in the window and {a.size} in the reference, {config.minimum} of each are needed"
        return counts._replace(why=why)
    if check.kind == "mix":
        effect, p = _mix(a, b)
        return counts._replace(effect=effect, p=p)
    effect, p = (_rate if check.kind == "rate" else _shape)(a, b, _ALTERNATIVES[check.direction])
    return counts._replace(effect=effect, p=p, reference=float(a.mean()), window=float(b.mean()))


def _present(column: pd.Series, check: Check) -> np.ndarray:
    """The values that are there: text for a mix, finite floats otherwise."""
    if check.kind == "mix":
        return column.dropna().astype(str).to_numpy()
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    return values[np.isfinite(values)]


def _mix(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """(Cramer's V, p) of the 2 x categories table; one category in both is no difference."""
    categories = np.union1d(a, b)
    if categories.size == 1:
        return 0.0, 1.0
    table = np.array([[(values == category).sum() for category in categories] for values in (a, b)])
    result = stats.chi2_contingency(table, correction=False)
    return math.sqrt(float(result.statistic) / table.sum()), float(result.pvalue)


def _rate(a: np.ndarray, b: np.ndarray, alternative: str) -> tuple[float, float]:
    """(difference of the shares in the direction asked for, p), by Fisher's exact test."""
    ones = int((b != 0).sum()), int((a != 0).sum())
    table = [[ones[0], b.size - ones[0]], [ones[1], a.size - ones[1]]]
    rise = ones[0] / b.size - ones[1] / a.size
    effect = {"two-sided": abs(rise), "greater": rise, "less": -rise}[alternative]
    return effect, float(stats.fisher_exact(table, alternative=alternative).pvalue)


def _shape(a: np.ndarray, b: np.ndarray, alternative: str) -> tuple[float, float]:
    """(Kolmogorov-Smirnov statistic, p). Values that rise have a distribution function that lies below."""
    below = {"two-sided": "two-sided", "greater": "less", "less": "greater"}[alternative]
    result = stats.ks_2samp(b, a, alternative=below, method="asymp")
    return float(result.statistic), float(result.pvalue)


def _missing(reference: pd.DataFrame, window: pd.DataFrame, config: DriftConfig) -> _Measured:
    """The column whose share of missing values rose most, its p corrected for having been picked (Bonferroni)."""
    counts = _Measured(MISSING, config.missing_effect, len(reference), len(window))
    checks = [check for check in config.checks if check.column in reference and check.column in window]
    here = [_present(window[check.column], check).size for check in checks]
    if min(len(reference), len(window)) < config.minimum or not any(here):
        return counts._replace(why="the window or the reference holds too few values to count the missing ones")
    found = []
    for check in checks:
        a, b = (len(f) - _present(f[check.column], check).size for f in (reference, window))
        ones = [np.arange(len(f)) < lost for f, lost in ((reference, a), (window, b))]
        effect, p = _rate(ones[0], ones[1], "greater")
        found.append((effect, p, a / len(reference), b / len(window)))
    worst = max(found)
    p = min(1.0, worst[1] * len(found))
    return counts._replace(effect=worst[0], p=p, reference=worst[2], window=worst[3])


def _row(measured: _Measured, corrected: float | None, alpha: float) -> Row:
    fields = {key: value for key, value in measured._asdict().items() if key != "why"}
    effect = measured.effect
    if effect is None or corrected is None or not math.isfinite(effect) or not math.isfinite(corrected):
        fields |= {"effect": None, "p": None}
        reason = measured.why or "no finite effect was measured"
        return Row(**fields, verdict=Verdict.INCONCLUSIVE, reason=reason)
    drifted = effect >= measured.limit and corrected < alpha
    reason = (
        f"{'drift' if drifted else 'no drift'}: effect {effect:.3g} (limit {measured.limit:g}), corrected p "
        f"{corrected:.3g} (alpha {alpha:g}), {measured.n_window} against {measured.n_reference} sessions"
    )
    verdict = Verdict.FAIL if drifted else Verdict.PASS
    return Row(**fields, corrected_p=corrected, verdict=verdict, reason=reason)
