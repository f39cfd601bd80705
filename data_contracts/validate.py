"""Validation: which rows of a table hold to its contract, and which do not and why.

frame -> column checks (pandera) -> cross-field rules -> Validation(accepted, rejected)
frozen frame -> expectations (Great Expectations) -> ExpectationReport

A table that holds no row is not valid: a check that saw nothing has shown nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from data_contracts.contract import Contract, load_contract
from data_contracts.gates import Gate, Verdict
from data_contracts.rules import Rule

PANDERA_NAMES = {
    "not_nullable": "required",
    "field_uniqueness": "unique",
    "multiple_fields_uniqueness": "unique",
    "column_in_dataframe": "column_missing",
    "column_in_schema": "column_unknown",
}


class Rejection(NamedTuple):
    """One row and one rule it breaks; `row` is its position in the validated frame, None for the table as a whole."""

    row: int | None
    key: str
    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Validation:
    """The rows that hold, and a rejection for each rule that a dropped row broke.

    `skipped` names rules that need a table which was not given: nothing is known about them.
    """

    table: str
    accepted: pd.DataFrame
    rejected: list[Rejection]
    skipped: tuple[str, ...]
    source: pd.DataFrame

    @property
    def counts(self) -> dict[str, int]:
        """How often each rule was broken."""
        return dict(Counter(rejection.rule for rejection in self.rejected))

    @property
    def dropped(self) -> int:
        """How many rows were not accepted."""
        return len(self.source) - len(self.accepted)

    def rows_with_reasons(self) -> Iterator[tuple[Rejection, dict[str, Any]]]:
        """Each rejection with the row it is about (empty for the table as a whole), as the quarantine keeps it."""
        for rejection in self.rejected:
            row = {} if rejection.row is None else self.source.iloc[rejection.row].to_dict()
            yield rejection, {str(name): value for name, value in row.items()}

    def gate(self, *, max_dropped_share: float = 0.0) -> Gate:
        """PASS when rows were accepted and at most that share was dropped; nothing to judge is INCONCLUSIVE."""
        share = self.dropped / len(self.source) if len(self.source) else None
        whole_table = [rejection.reason for rejection in self.rejected if rejection.row is None]
        if share is None or self.skipped:
            reason = f"rules not asked: {', '.join(self.skipped)}" if self.skipped else "the table holds no row"
            verdict = Verdict.INCONCLUSIVE
        else:
            verdict = Verdict.FAIL if whole_table or share > max_dropped_share else Verdict.PASS
            reason = "; ".join([f"{self.dropped} of {len(self.source)} rows dropped", *whole_table])
        evidence: dict[str, Any] = {"rows": len(self.source), "dropped": self.dropped, **self.counts}
        return Gate(name=f"{self.table}_contract", verdict=verdict, reason=reason, evidence=evidence)


@dataclass(frozen=True, slots=True)
class ExpectationReport:
    """What Great Expectations said of a frozen batch: `failed` as `column: expectation`, `evaluated` of them asked."""

    table: str
    passed: bool
    failed: list[str]
    evaluated: int
    rows: int

    def gate(self) -> Gate:
        """PASS when every expectation was met by a batch that is not empty."""
        verdict = Verdict.PASS if self.passed else Verdict.FAIL
        if self.rows == 0 or self.evaluated == 0:
            verdict = Verdict.INCONCLUSIVE
        met = f"{self.evaluated - len(self.failed)} of {self.evaluated} expectations met by {self.rows} rows"
        reason = "; ".join([met, *self.failed])
        evidence: dict[str, Any] = {"rows": self.rows, "evaluated": self.evaluated, "failed": len(self.failed)}
        return Gate(name=f"{self.table}_expectations", verdict=verdict, reason=reason, evidence=evidence)


def validate(
    table: str, frame: pd.DataFrame, *, minimum_rows: int = 1, companions: Mapping[str, pd.DataFrame] | None = None
) -> Validation:
    """Check every row of `frame` against the contract of `table`.

    A missing or unknown column rejects every row. A rule that looks at another table is asked when `companions` holds
    that table, and listed in `skipped` otherwise. Fewer accepted rows than `minimum_rows` (or the contract's own
    minimum) is a rejection of the table, `minimum_rows`.
    """
    checked = _Checked.of_columns(load_contract(table), frame)
    checked.ask(companions or {})
    return checked.result(minimum_rows)


def validate_rollouts(
    trajectories: pd.DataFrame, segments: pd.DataFrame, *, minimum_rows: int = 1
) -> tuple[Validation, Validation]:
    """Check both tables of a batch together: a rollout goes on whole, with all its segments, or not at all."""
    parts = _Checked.of_columns(load_contract("segments"), segments)
    parts.ask({})
    companions = {"segments": parts.alive}
    whole = validate("trajectories", trajectories, minimum_rows=minimum_rows, companions=companions)
    parts.ask({"trajectories": whole.accepted})
    return whole, parts.result(minimum_rows)


def expect(table: str, frame: pd.DataFrame) -> ExpectationReport:
    """Run the contract's expectations over a frozen batch; the first call in a process imports Great Expectations."""
    from data_contracts.suites import evaluate

    failed, evaluated = evaluate(table, frame)
    return ExpectationReport(table, not failed and evaluated > 0, failed, evaluated, len(frame))


@cache
def _schema(table: str) -> Any:
    return load_contract(table).pandera()


def _column_rejections(contract: Contract, frame: pd.DataFrame) -> list[Rejection]:
    from pandera.errors import SchemaErrors

    try:
        _schema(contract.name).validate(frame, lazy=True)
    except SchemaErrors as errors:
        found = errors.failure_cases
    else:
        return []
    rejections: dict[tuple[int | None, str], Rejection] = {}
    for column, check, value, index in zip(
        found["column"], found["check"], found["failure_case"], found["index"], strict=True
    ):
        for rejection in _explained(contract, frame, column, check, value, index):
            rejections.setdefault((rejection.row, rejection.rule), rejection)
    return list(rejections.values())


def _explained(
    contract: Contract, frame: pd.DataFrame, column: Any, check: str, value: Any, index: Any
) -> Iterator[Rejection]:
    """One of pandera's findings as rejections; one without a row is about the table, and so about every row."""
    name = PANDERA_NAMES.get(check, check)
    if index is None or pd.isna(index):
        rule = f"{value}.{name}" if name.startswith("column_") else f"{column}.{name}"
        reason = f"the table's column {value!r}: {name}" if name.startswith("column_") else f"{column}: {name}: {value}"
        yield Rejection(None, "", rule, reason)
        for row in range(len(frame)):
            yield Rejection(row, _key(contract, frame, row), rule, reason)
        return
    row = int(index)
    together = check == "multiple_fields_uniqueness"
    where = "+".join(contract.unique_together) if together else str(column)
    cell = _short(_key(contract, frame, row) if together else frame[column].iloc[row])
    yield Rejection(row, _key(contract, frame, row), f"{where}.{name}", f"{where} is {cell}, which breaks {name}")


@dataclass(slots=True)
class _Checked:
    """A table on its way through the checks: `alive` keeps the source's positions as its index."""

    contract: Contract
    source: pd.DataFrame
    alive: pd.DataFrame
    rejected: list[Rejection]
    pending: tuple[Rule, ...]

    @classmethod
    def of_columns(cls, contract: Contract, frame: pd.DataFrame) -> _Checked:
        source = frame.reset_index(drop=True)
        checked = cls(contract, source, source, [], contract.rules)
        checked._reject(_column_rejections(contract, source))
        if any(rejection.row is None for rejection in checked.rejected):
            # a table of other columns: whoever looks at the accepted rows finds none, under the right names
            checked.alive = source.iloc[:0].reindex(columns=[column.name for column in contract.columns])
        return checked

    def ask(self, companions: Mapping[str, pd.DataFrame]) -> None:
        """Ask the rules still pending whose companion tables are there."""
        ready = [rule for rule in self.pending if all(name in companions for name in rule.tables)]
        self.pending = tuple(rule for rule in self.pending if rule not in ready)
        for rule in ready:
            if self.alive.empty:
                continue
            holds = rule.holds(self.alive, *(companions[name] for name in rule.tables))
            rows = self.alive.index[~np.asarray(holds, dtype=bool)]
            key = partial(_key, self.contract, self.alive)
            self._reject([Rejection(int(row), key(row), rule.name, rule.description) for row in rows])

    def result(self, minimum_rows: int) -> Validation:
        least = max(minimum_rows, self.contract.minimum_rows)
        if len(self.alive) < least:
            reason = f"{len(self.alive)} valid rows, {least} are needed"
            self.rejected.append(Rejection(None, "", "minimum_rows", reason))
        skipped = tuple(rule.name for rule in self.pending)
        accepted = self.alive.reset_index(drop=True)
        return Validation(self.contract.name, accepted, self.rejected, skipped, self.source)

    def _reject(self, found: list[Rejection]) -> None:
        self.rejected += found
        rows = {rejection.row for rejection in found if rejection.row is not None}
        self.alive = self.alive.drop(index=list(rows)) if rows else self.alive


def _key(contract: Contract, frame: pd.DataFrame, row: int) -> str:
    """The row's name; its position where a key column is missing or null."""
    if not set(contract.key) <= set(frame.columns):
        return f"row {row}"
    parts = [frame[name].loc[row] for name in contract.key]
    return f"row {row}" if any(pd.isna(part) for part in parts) else "/".join(str(part) for part in parts)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
