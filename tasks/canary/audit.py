"""The audit log: who was served by which weights, turn by turn, and how it ended; never what was said.

turn or outcome -> one fsynced JSON line of the day -> at the day's end, or at close: YYYY-MM-DD.parquet

A row is on disk before its request is answered. Rolling a day is repeatable: rows carry an id, a row that is in both
files (a kill between writing the one and deleting the other) is kept once.
"""

from __future__ import annotations

import io
import json
import threading
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from data_contracts.records import Record
from data_contracts.store import append_jsonl, read_jsonl, write_atomic

SCHEMA = pa.schema(
    [
        ("event", pa.string()),
        ("kind", pa.string()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("session", pa.string()),
        ("release", pa.string()),
        ("arm", pa.string()),
        ("stage", pa.int64()),
        ("digest", pa.string()),
        ("turn", pa.int64()),
        ("status", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("finish_reason", pa.string()),
        ("tool_calls", pa.list_(pa.string())),
        ("call_errors", pa.int64()),
        ("latency", pa.float64()),
        ("outcome", pa.bool_()),
        ("metadata", pa.string()),
    ]
)


class AuditRow(Record):
    """One turn as it was served, or (kind `outcome`) how a session ended. `latency` is in seconds."""

    kind: Literal["turn", "outcome"]
    session: str
    release: str
    arm: str
    stage: int = 0
    digest: str
    turn: int
    status: str = "ok"
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    tool_calls: tuple[str, ...] = ()
    call_errors: int = 0
    latency: float | None = None
    outcome: bool | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class AuditLog:
    """Appends rows to a folder; one log has a folder at a time. Any thread may write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._day = ""
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, row: AuditRow, now: datetime | None = None) -> None:
        """Write a row to disk; the first row of a day rolls the days before it."""
        ts = now or datetime.now(UTC)
        line = row.model_dump(mode="json") | {"event": uuid.uuid4().hex, "ts": ts.isoformat()}
        line["metadata"] = json.dumps(row.metadata, sort_keys=True)
        day = ts.date().isoformat()
        with self._lock:
            append_jsonl(self._folder / f"{day}.jsonl", json.dumps(line))
            if day != self._day:
                self._day = day
                self._roll(keep=day)

    def close(self) -> None:
        """Turn every open day into Parquet."""
        with self._lock:
            self._day = ""
            self._roll(keep=None)

    def _roll(self, keep: str | None) -> None:
        for path in sorted(self._folder.glob("*.jsonl")):
            if path.stem != keep:
                day = path.with_suffix(".parquet")
                rows = [*(pq.read_table(day).to_pylist() if day.exists() else []), *_lines(path)]
                buffer = io.BytesIO()
                pq.write_table(pa.Table.from_pylist(_once(rows), schema=SCHEMA), buffer, compression="zstd")
                write_atomic(day, buffer.getvalue())
                path.unlink()


def read_audit(folder: Path, days: Sequence[str] | None = None) -> pd.DataFrame:
    """Every row, oldest first, of the days named ("2026-11-30"; default: all), closed or still open."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.iterdir()) if folder.exists() else []:
        if days is not None and path.stem not in days:
            continue
        if path.suffix == ".parquet":
            rows += pq.read_table(path).to_pylist()
        elif path.suffix == ".jsonl":
            rows += _lines(path)
    table = pa.Table.from_pylist(_once(rows), schema=SCHEMA).sort_by([("ts", "ascending")])
    return table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}.get)


def _lines(path: Path) -> list[dict[str, Any]]:
    rows = read_jsonl(path).rows
    for row in rows:
        row["ts"] = datetime.fromisoformat(row["ts"])
    return rows


def _once(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({row["event"]: row for row in rows}.values())
