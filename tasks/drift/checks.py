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
from numpy.typing import NDArray

from data_contracts.gates import Gate, Verdict
from data_contracts.records import Record
from tasks.drift.config import MISSING, Check, DriftConfig
from tasks.drift.measures import measure, present, rate


class Row(Record):
    """One check as measured: `reference` and `window` are means, shares, calibration errors, or None.

    `low` and `high` are a 95 % interval of the window's figure, where one was taken.
    """

    check: str
    optional: bool = False
    verdict: Verdict
    reason: str
    n_reference: int
    n_window: int
    reference: float | None = None
    window: float | None = None
    low: float | None = None
    high: float | None = None
    effect: float | None = None
    limit: float
    p: float | None = None
    corrected_p: float | None = None

    def gate(self) -> Gate:
        """The row as a gate; PASS means that no drift was found where it would have been."""
        evidence = self.model_dump(exclude={"check", "optional", "verdict", "reason"})
        return Gate(name=f"drift_{self.check}", verdict=self.verdict, reason=self.reason, evidence=evidence)


class DriftReport(Record):
    """All checks of one window."""

    rows: tuple[Row, ...]

    @property
    def verdict(self) -> Verdict:
        """FAIL when any check drifted, else PASS only when every check that is not optional could tell."""
        if self.drifted:
            return Verdict.FAIL
        told = all(row.verdict is Verdict.PASS for row in self.rows if not row.optional)
        return Verdict.PASS if told else Verdict.INCONCLUSIVE

    @property
    def drifted(self) -> tuple[str, ...]:
        """Names of the checks that drifted."""
        return tuple(row.check for row in self.rows if row.verdict is Verdict.FAIL)

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
    low: float | None = None
    high: float | None = None
    effect: float | None = None
    p: float | None = None
    why: str = ""
    note: str = ""


def drift_checks(reference: pd.DataFrame, window: pd.DataFrame, config: DriftConfig) -> DriftReport:
    """Compare two tables of sessions, one row a session, columns as the checks name them (None or NaN: missing)."""
    measured = [_measure(check, reference, window, config) for check in config.checks]
    measured.append(_missing(reference, window, config))
    judged = [m for m in measured if m.p is not None]
    corrected = dict(zip((m.check for m in judged), holm([m.p or 0.0 for m in judged]), strict=True))
    optional = {check.name for check in config.checks if check.optional}
    return DriftReport(rows=tuple(_row(m, corrected.get(m.check), config.alpha, m.check in optional) for m in measured))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.minimum(1.0, np.maximum.accumulate(p[order] * (p.size - np.arange(p.size))))
    adjusted = np.empty_like(p)
    adjusted[order] = stepped
    return [float(value) for value in adjusted]


def _measure(check: Check, reference: pd.DataFrame, window: pd.DataFrame, config: DriftConfig) -> _Measured:
    sides = (("reference", reference), ("window", window))
    absent = [(name, column) for name, frame in sides for column in check.columns if column not in frame]
    if absent:
        why = f"the {' and the '.join(f'{name} has no column {column}' for name, column in absent)}"
        return _Measured(check.name, check.effect, 0, 0, why=why)
    a, b = present(reference, check), present(window, check)
    counts = _Measured(check.name, check.effect, len(a), len(b))
    if min(len(a), len(b)) < config.minimum:
        why = f"{len(b)} values in the window and {len(a)} in the reference, {config.minimum} of each are needed"
        return counts._replace(why=why)
    return counts._replace(**measure(check, a, b, config.permutations)._asdict())


def _missing(reference: pd.DataFrame, window: pd.DataFrame, config: DriftConfig) -> _Measured:
    """The column whose share of missing values rose most, its p corrected for having been picked (Bonferroni)."""
    counts = _Measured(MISSING, config.missing_effect, len(reference), len(window))
    found, here = [], 0
    for check in config.checks:
        if any(column not in frame for frame in (reference, window) for column in check.columns):
            continue
        a, b = len(present(reference, check)), len(present(window, check))
        here += b
        if not check.optional or (a and b):  # an optional column that one side never had is no loss
            found.append((check.column, _lost(reference, a), _lost(window, b)))
    if min(len(reference), len(window)) < config.minimum or not here:
        return counts._replace(why="the window or the reference holds too few values to count the missing ones")
    measured = {column: rate(before, now, "greater") for column, before, now in found}
    column = max(measured, key=lambda name: measured[name].effect)
    worst = measured[column]
    p = min(1.0, worst.p * len(measured))
    return counts._replace(**worst._replace(p=p)._asdict(), note=f" in {column}")


def _lost(frame: pd.DataFrame, here: int) -> NDArray[np.float64]:
    """1 for each row without a value, 0 for the `here` rows with one."""
    return np.repeat([0.0, 1.0], [here, len(frame) - here])


def _row(measured: _Measured, corrected: float | None, alpha: float, optional: bool) -> Row:
    fields = {key: value for key, value in measured._asdict().items() if key not in ("why", "note")}
    fields["optional"] = optional
    effect = measured.effect
    if effect is None or corrected is None or not math.isfinite(effect) or not math.isfinite(corrected):
        fields |= {"effect": None, "p": None}
        reason = measured.why or "no finite effect was measured"
        return Row(**fields, verdict=Verdict.INCONCLUSIVE, reason=reason)
    drifted = effect >= measured.limit and corrected < alpha
    said = f"{'drift' if drifted else 'no drift'}{measured.note}"
    reason = (
        f"{said}: effect {effect:.3g} (limit {measured.limit:g}), corrected p {corrected:.3g} (alpha {alpha:g}), "
        f"{measured.n_window} against {measured.n_reference} sessions"
    )
    verdict = Verdict.FAIL if drifted else Verdict.PASS
    return Row(**fields, corrected_p=corrected, verdict=verdict, reason=reason)
