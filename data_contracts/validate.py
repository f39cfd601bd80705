"""Validation: which rows of a table hold to its contract, and which do not and why.

frame -> column checks (pandera) -> cross-field rules -> rows nested in columns, by their own contract -> Validation
frozen frame -> expectations (Great Expectations) -> ExpectationReport

A table that holds no row is not valid: a check that saw nothing has shown nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd

from data_contracts.batches import Statistics
from data_contracts.contract import Contract, load_contract
from data_contracts.nested import unnest
from data_contracts.rules import Rule
from data_contracts.verdicts import ExpectationReport, Rejection, Validation

PANDERA_NAMES = {
    "not_nullable": "required",
    "unique_together": "unique",
    "column_in_dataframe": "column_missing",
    "column_in_schema": "column_unknown",
}


def validate(
    table: str, frame: pd.DataFrame, *, minimum_rows: int = 1, companions: Mapping[str, pd.DataFrame] | None = None
) -> Validation:
    """Check every row of `frame` against the contract of `table`.

    A missing or unknown column rejects every row. A nested row that breaks a rule rejects the row it is in, as
    `<column>.<rule>`. A rule that looks at another table is asked when `companions` holds
    that table, and listed in `skipped` otherwise. Fewer accepted rows than `minimum_rows` (or the contract's own
    minimum) is a rejection of the table, `minimum_rows`.
    """
    checked = _Checked.of_columns(load_contract(table), frame)
    checked.ask(companions or {})
    checked.ask_nested(companions or {})
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


def expect(table: str, frame: pd.DataFrame, before: Sequence[Statistics] = ()) -> ExpectationReport:
    """Run the contract's expectations over a frozen batch, and those beside the batches accepted `before`.

    The first call in a process imports Great Expectations.
    """
    from data_contracts.suites import evaluate

    return evaluate(table, frame, before)


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
        yield from _every_row(contract, frame, rule, reason)
        return
    row = int(index)
    together = check == "unique_together"
    where = "+".join(contract.unique_together) if together else str(column)
    cell = _short(_key(contract, frame, row) if together else frame[column].iloc[row])
    yield Rejection(row, _key(contract, frame, row), f"{where}.{name}", f"{where} is {cell}, which breaks {name}")


def _every_row(contract: Contract, frame: pd.DataFrame, rule: str, reason: str) -> Iterator[Rejection]:
    yield Rejection(None, "", rule, reason)
    for row in range(len(frame)):
        yield Rejection(row, _key(contract, frame, row), rule, reason)


@dataclass(slots=True)
class _Checked:
    """A table on its way through the checks.

    `typed` are the rows that passed the column checks, in the contract's types; `alive` those that passed every rule so
    far, JSON parsed. Both keep the source's positions as their index.
    """

    contract: Contract
    source: pd.DataFrame
    typed: pd.DataFrame
    alive: pd.DataFrame
    rejected: list[Rejection]
    pending: tuple[Rule, ...]
    unasked: tuple[str, ...] = ()
    """Rules of nested rows that need a table which was not given."""

    @classmethod
    def of_columns(cls, contract: Contract, frame: pd.DataFrame) -> _Checked:
        twice = frame.columns.duplicated()
        source = frame.loc[:, ~twice].reset_index(drop=True)
        rejected = _column_rejections(contract, source)
        for name in sorted(set(map(str, frame.columns[twice]))):
            reason = f"the table's column {name!r}: column_twice"
            rejected += _every_row(contract, source, f"{name}.column_twice", reason)
        rows = {rejection.row for rejection in rejected}
        # a table of other columns: whoever looks at the accepted rows finds none, under the right names
        sound = source.iloc[:0] if None in rows else source.drop(index=[row for row in rows if row is not None])
        typed = sound.reindex(columns=[column.name for column in contract.columns]).astype(_types(contract))
        nested = [column.name for column in contract.columns if column.json_shape]
        parsed = {name: typed[name].map(json.loads, na_action="ignore") for name in nested}
        return cls(contract, source, typed, typed.assign(**parsed), rejected, contract.rules)

    def ask(self, companions: Mapping[str, pd.DataFrame]) -> None:
        """Ask the rules still pending whose companion tables are there."""
        ready = [rule for rule in self.pending if all(name in companions for name in rule.tables)]
        self.pending = tuple(rule for rule in self.pending if rule not in ready)
        for rule in ready:
            if self.alive.empty:
                continue
            holds = rule.holds(self.alive, *(companions[name] for name in rule.tables))
            rows = self.alive.index[~np.asarray(holds, dtype=bool)]
            self._reject((int(row), rule.name, rule.description) for row in rows)

    def ask_nested(self, companions: Mapping[str, pd.DataFrame]) -> None:
        """Hold the rows nested in columns to the contract of their own table."""
        for column in self.contract.columns:
            if column.rows_of is None:
                continue
            inner = load_contract(column.rows_of)
            parts, owners = unnest(inner, self.alive, self.contract.key, column.name)
            checked = _Checked.of_columns(inner, parts)
            checked.ask(companions)
            self.unasked += tuple(f"{column.name}.{rule.name}" for rule in checked.pending)
            found = [(r.row, r.rule, r.reason) for r in checked.rejected if r.row is not None]
            broken = {(int(owners[row]), f"{column.name}.{rule}"): reason for row, rule, reason in reversed(found)}
            self._reject((row, rule, reason) for (row, rule), reason in sorted(broken.items()))

    def _reject(self, found: Iterable[tuple[int, str, str]]) -> None:
        key = partial(_key, self.contract, self.alive)
        rejections = [Rejection(row, key(row), rule, reason) for row, rule, reason in found]
        self.rejected += rejections
        self.alive = self.alive.drop(index=list({rejection.row for rejection in rejections}))

    def result(self, minimum_rows: int) -> Validation:
        least = max(minimum_rows, self.contract.minimum_rows)
        if len(self.alive) < least:
            reason = f"{len(self.alive)} valid rows, {least} are needed"
            self.rejected.append(Rejection(None, "", "minimum_rows", reason))
        skipped = (*(rule.name for rule in self.pending), *self.unasked)
        accepted = self.typed.loc[self.alive.index].reset_index(drop=True)
        return Validation(self.contract.name, accepted, self.rejected, skipped, self.source)


def _types(contract: Contract) -> dict[str, str]:
    """The frame's types by column; text and arrays are objects."""
    scalars = {"integer": "Int64", "boolean": "boolean", "number": "float64", "timestamp": "datetime64[us, UTC]"}
    return {column.name: scalars.get(column.logical_type, "object") for column in contract.columns}


def _key(contract: Contract, frame: pd.DataFrame, row: int) -> str:
    """The row's name; its position where a key column is missing, null or no scalar."""
    if not set(contract.key) <= set(frame.columns):
        return f"row {row}"
    parts = [frame[name].loc[row] for name in contract.key]
    named = all(pd.api.types.is_scalar(part) and not pd.isna(part) for part in parts)
    return "/".join(str(part) for part in parts) if named else f"row {row}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
