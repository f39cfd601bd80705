"""Is the audit log as it was written? From the first row to the head, hash by hash.

days, oldest first -> row after row: number and hash follow from the row before -> Verified, or the first Fault
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from data_contracts.errors import UserError
from data_contracts.store import read_json
from tasks.canary.audit.days import HEAD, Day, Removed, days_of, read_head, table_rows, whole_lines
from tasks.canary.audit.rows import START, Place, link, row_of


class Fault(NamedTuple):
    """Where the chain breaks first: file, row in it from 0, and how."""

    file: str
    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What was looked at. `head` is the last row before the fault, if there is one."""

    days: int
    rows: int
    removed: int
    head: Place
    fault: Fault | None


def verify(folder: Path, expected: str | None = None) -> Verified:
    """Follow the chain; `expected` is a head that was noted elsewhere, which has to be in it."""
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist: give the folder of an audit log.")
    head = read_head(folder)  # first: rows that are written meanwhile lie beyond it
    walk = _Walk({hash for hash in (expected, head.hash if head else None) if hash})
    wanted = days_of(folder)
    fault = next((fault for day in wanted if (fault := walk.through(day))), None)
    if fault is None:
        fault = _cut_off(walk, head, expected, empty=not wanted)
    return Verified(len(wanted), walk.rows, walk.removed, walk.place, fault)


class _Walk:
    """The chain so far; `sought` are hashes that have to come by."""

    def __init__(self, sought: set[str]) -> None:
        self.place, self.rows, self.removed = START, 0, 0
        self.sought = sought - {START.hash}

    def through(self, day: Day) -> Fault | None:
        """Follow the chain through a day; its first fault."""
        if day.removed.exists():
            return self._over(day)
        return self._along(day, day.table, _closed(day.table)) or self._along(day, day.lines, _open(day.lines))

    def _over(self, day: Day) -> Fault | None:
        stub = Removed.model_validate(read_json(day.removed))
        if stub.before != self.place.hash:
            return Fault(day.removed.name, 0, "the removed day does not follow the row before it")
        self._pass(Place(day.name, stub.rows - 1, stub.last))
        self.removed += 1
        return None

    def _along(self, day: Day, path: Path, rows: Iterator[dict[str, Any] | str]) -> Fault | None:
        for number, row in enumerate(rows):
            if isinstance(row, str):
                return Fault(path.name, number, row)
            due = self.place.seq + 1 if self.place.day == day.name else 0
            if path == day.lines and row["seq"] < due:
                continue  # in the Parquet file too: a kill came between writing that and deleting these
            if row["seq"] != due:
                return Fault(path.name, number, f"it is row {row['seq']} of the day, but row {due} is due")
            if link(row, self.place.hash) != row["hash"]:
                return Fault(path.name, number, "it was changed, or a row before it was: its hash does not follow")
            self._pass(Place(day.name, row["seq"], row["hash"]))
            self.rows += 1
        return None

    def _pass(self, place: Place) -> None:
        self.place = place
        self.sought.discard(place.hash)


def _closed(path: Path) -> Iterator[dict[str, Any] | str]:
    try:
        yield from table_rows(path)
    except pa.ArrowInvalid as error:
        yield f"not a Parquet file ({error})"


def _open(path: Path) -> Iterator[dict[str, Any] | str]:
    """The lines as rows; what is wrong with the first that is none. A torn last line was never acknowledged."""
    for line in whole_lines(path):
        try:
            row = row_of(line)
            row["hash"], link(row, "")
        except (ValueError, KeyError, TypeError) as error:
            yield f"not a row of the log ({error!r})"
            return
        yield row


def _cut_off(walk: _Walk, head: Place | None, expected: str | None, *, empty: bool) -> Fault | None:
    """Whether rows at the end are missing."""
    if head is None:
        return None if empty else Fault(HEAD, 0, "the file is gone: whether rows at the end are missing is not known")
    if head.hash in walk.sought:
        last = walk.place
        return Fault(head.day, last.seq + 1, f"the log was written up to row {head.seq} of {head.day}; the end is gone")
    if expected in walk.sought:
        return Fault(HEAD, 0, f"the head {expected} that was noted is not in the chain")
    return None
