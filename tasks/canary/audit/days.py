"""The files of an audit log, one day each, and the head that says how far it was written.

YYYY-MM-DD.jsonl (open) -> YYYY-MM-DD.parquet (closed) -> YYYY-MM-DD.removed.json (its hashes alone, after retention)

A day that was opened again has both: the rows of the Parquet file, then the lines with greater numbers. Lines with
numbers that the Parquet file has too are what a kill left between writing the one and deleting the other.
"""

from __future__ import annotations

import io
import json
import mmap
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from data_contracts.records import Record
from data_contracts.store import read_json, write_atomic, write_json
from tasks.canary.audit.rows import SCHEMA, START, Place, row_of

HEAD = "head.json"
_BATCH = 4096


class Removed(Record):
    """What stays of a day that retention removed: enough for the chain to go on."""

    rows: int = Field(ge=0)
    before: str = Field(description="hash before the day's first row")
    last: str = Field(description="hash of the day's last row")
    removed_at: str
    why: str


class Day(NamedTuple):
    """Where a day's rows may lie."""

    folder: Path
    name: str

    @property
    def lines(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    @property
    def table(self) -> Path:
        return self.folder / f"{self.name}.parquet"

    @property
    def removed(self) -> Path:
        return self.folder / f"{self.name}.removed.json"


def days_of(folder: Path) -> list[Day]:
    """The days of a log, oldest first."""
    ends = (".jsonl", ".parquet", ".removed.json")
    names = {
        path.name.removesuffix(end)
        for path in (folder.iterdir() if folder.exists() else [])
        for end in ends
        if path.name.endswith(end) and not path.name.startswith(".")
    }
    return [Day(folder, name) for name in sorted(names)]


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines that were written to their end; none where there is no file."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def table_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a closed day; none where there is no file."""
    if not path.exists():
        return
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_BATCH):
            yield from conformed(pa.Table.from_batches([batch])).to_pylist()


def conformed(table: pa.Table) -> pa.Table:
    """A table with every column; those that files of before the chain lack are filled with what held then."""
    filled = {"tenant": "local", "shadow": False, "trainable": False, "hash": ""}
    for field in SCHEMA:
        if field.name not in table.schema.names:
            values = range(len(table)) if field.name == "seq" else [filled.get(field.name)] * len(table)
            table = table.append_column(field, pa.array(values, field.type))
    return table.select(SCHEMA.names)


def rows_of(day: Day) -> Iterator[dict[str, Any]]:
    """A day's rows in order, each once."""
    last = -1
    for row in table_rows(day.table):
        last = row["seq"]
        yield row
    for line in whole_lines(day.lines):
        if (row := row_of(line))["seq"] > last:
            yield row


def close_day(day: Day) -> None:
    """Turn a day's lines into Parquet, and delete them. May be repeated after a kill."""
    if not day.lines.exists():
        return
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, SCHEMA, compression="zstd") as writer:
        rows = rows_of(day)
        while batch := list(islice(rows, _BATCH)):
            writer.write_table(pa.Table.from_pylist(batch, schema=SCHEMA))
    write_atomic(day.table, buffer.getvalue())
    day.lines.unlink()


def expire(folder: Path, today: str, keep: int) -> None:
    """Remove the rows of days more than `keep` days before `today`; a stub keeps the chain whole."""
    oldest = (date.fromisoformat(today) - timedelta(days=keep)).isoformat()
    before = START.hash
    for day in days_of(folder):
        if day.removed.exists():
            day.table.unlink(missing_ok=True)  # a kill may have come between the two
            before = Removed.model_validate(read_json(day.removed)).last
            continue
        if day.name >= oldest or day.lines.exists():
            return
        hashes = [row["hash"] for row in table_rows(day.table)]
        now = datetime.now(UTC).isoformat(timespec="seconds")
        why = f"retention of {keep} days"
        stub = Removed(rows=len(hashes), before=before, last=hashes[-1], removed_at=now, why=why)
        write_json(day.removed, stub)
        day.table.unlink()
        before = stub.last


def read_head(folder: Path) -> Place | None:
    """How far the log was written, as its writer noted; None where no writer ever was."""
    path = folder / HEAD
    return Place(**read_json(path)) if path.exists() else None


def write_head(folder: Path, place: Place) -> None:
    """Note how far the log was written. After the rows are on disk: it may lag behind them, never run ahead."""
    temporary = folder / f".{HEAD}.tmp"
    temporary.write_text(json.dumps(place._asdict()))
    os.replace(temporary, folder / HEAD)


def last_place(folder: Path) -> Place:
    """Where the chain goes on: behind the last row or, were rows cut off, still behind the head, so that it shows."""
    found = START
    for day in reversed(days_of(folder)):
        if (place := _end_of(day)) is not None:
            found = place
            break
    head = read_head(folder)
    return found if head is None else max(found, head, key=lambda place: (place.day, place.seq))


def mend(path: Path) -> int:
    """Cut a line that a kill left torn; returns the bytes that stay."""
    size = path.stat().st_size if path.exists() else 0
    if size == 0:
        return 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        whole = view.rfind(b"\n") + 1
    if whole < size:
        os.truncate(path, whole)
    return whole


def _end_of(day: Day) -> Place | None:
    """The place of a day's last row; None of a day without any."""
    if day.removed.exists():
        stub = Removed.model_validate(read_json(day.removed))
        return Place(day.name, stub.rows - 1, stub.last)
    last = _last(whole_lines(day.lines))
    if last is not None:
        row = row_of(last)
        return Place(day.name, row["seq"], row["hash"])
    row = _last(table_rows(day.table))
    return None if row is None else Place(day.name, row["seq"], row["hash"])


def _last(rows: Iterable[Any]) -> Any:
    found = None
    for found in rows:  # noqa: B007
        pass
    return found
