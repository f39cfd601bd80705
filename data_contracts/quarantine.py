"""Quarantine: every dropped row is kept with the rule it broke, and counted.

(rejection, row) -> quarantine/<table>.jsonl, one line a row and rule; put back -> a line in quarantine/released/
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from data_contracts.store import append_jsonl, read_jsonl
from data_contracts.verdicts import Rejection


class Dropped(NamedTuple):
    """A row in quarantine with one rule it broke; `released` says when and why it was put back."""

    id: str
    table: str
    key: str
    rule: str
    reason: str
    run_id: str
    iteration: int
    at: str
    row: dict[str, Any]
    released: str | None


class Quarantine:
    """The folder of dropped rows. Adding the same row for the same rule again (a stage run twice) keeps one."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def add(
        self,
        table: str,
        rows_with_reasons: Iterable[tuple[Rejection, Mapping[str, Any]]],
        run_id: str,
        iteration: int,
    ) -> int:
        """Keep the rows (`Validation.rows_with_reasons()`); how many were new."""
        known = {_identity(line) for line in self.rows(table)}
        added = 0
        for rejection, row in rows_with_reasons:
            line = _line(rejection, row, run_id, iteration)
            if _identity(line) not in known:
                append_jsonl(self.folder / f"{table}.jsonl", json.dumps(line, allow_nan=False))
                known.add(_identity(line))
                added += 1
        return added

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The kept lines of one table: key, rule, reason, run_id, iteration, at, row."""
        return read_jsonl(self.folder / f"{table}.jsonl").rows

    def tables(self) -> list[str]:
        """The tables of which rows were dropped."""
        return sorted(path.stem for path in self.folder.glob("*.jsonl"))

    def counts(self, table: str | None = None) -> dict[str, int]:
        """Dropped rows by rule, of one table or of all; a row that broke two rules counts under both."""
        return dict(Counter(line["rule"] for name in ([table] if table else self.tables()) for line in self.rows(name)))

    def dropped(self) -> list[Dropped]:
        """Every row and rule of every table, with the id that names it."""
        released = {line["id"]: line for line in read_jsonl(self._released).rows}
        found = []
        for table in self.tables():
            for line in self.rows(table):
                parts = (table, line["run_id"], str(line["iteration"]), line["key"], line["rule"])
                name = hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:10]
                mark = f"{released[name]['at']}: {released[name]['why']}" if name in released else None
                found.append(Dropped(id=name, table=table, released=mark, **line))
        return found

    def mark_released(self, rows: Iterable[Dropped], why: str) -> None:
        """Note that the rows were put back; they stay where they are."""
        for row in rows:
            append_jsonl(self._released, json.dumps({"id": row.id, "why": why, "at": _now()}))

    @property
    def _released(self) -> Path:
        return self.folder / "released" / "rows.jsonl"


def _line(rejection: Rejection, row: Mapping[str, Any], run_id: str, iteration: int) -> dict[str, Any]:
    return {
        "key": rejection.key or f"{run_id}/{iteration:05d}",
        "rule": rejection.rule,
        "reason": rejection.reason,
        "run_id": run_id,
        "iteration": iteration,
        "at": _now(),
        "row": _plain(row),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _identity(line: Mapping[str, Any]) -> tuple[str, str]:
    return line["key"], line["rule"]


def _plain(value: Any) -> Any:
    """The value as strict JSON; what JSON cannot say (infinities, NaN, foreign types) is kept as its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(part) for part in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if value is None or value is pd.NA:
        return None
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    return value if isinstance(value, bool | int | str) else repr(value)
