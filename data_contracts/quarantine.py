"""Quarantine: every dropped row is kept with the rule it broke, and counted.

(rejection, row) -> quarantine/<table>.jsonl, one line a row and rule
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from data_contracts.store import append_jsonl, read_jsonl
from data_contracts.verdicts import Rejection


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

    def counts(self, table: str | None = None) -> dict[str, int]:
        """Dropped rows by rule, of one table or of all; a row that broke two rules counts under both."""
        tables = [table] if table else sorted(path.stem for path in self.folder.glob("*.jsonl"))
        return dict(Counter(line["rule"] for name in tables for line in self.rows(name)))


def _line(rejection: Rejection, row: Mapping[str, Any], run_id: str, iteration: int) -> dict[str, Any]:
    return {
        "key": rejection.key or f"{run_id}/{iteration:05d}",
        "rule": rejection.rule,
        "reason": rejection.reason,
        "run_id": run_id,
        "iteration": iteration,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "row": _plain(row),
    }


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
