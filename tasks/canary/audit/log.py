"""The writer of an audit log: a row is on disk before its request is answered, and rows that wait share one fsync.

submit(row) -> inbox -> [writer: chain, write, fsync, head] -> Future;  a new day -> the day before becomes Parquet
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import IO, NamedTuple, Self

from data_contracts.errors import UserError
from tasks.canary.audit.days import Day, close_day, days_of, expire, last_place, mend, read_head, write_head
from tasks.canary.audit.rows import START, AuditRow, Place, chained, line_of

_LOG = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    row: AuditRow
    ts: datetime
    written: Future[None]


class AuditLog:
    """Appends rows to a folder; one log has a folder at a time. Any thread may write.

    `retention_days`: days of which rows are kept, None for all. The hash chain shows that a row was changed, removed or
    inserted. Who may write to the folder could rewrite all of it: note the head's hash elsewhere to exclude that too.
    """

    def __init__(self, folder: Path, *, retention_days: int | None = None) -> None:
        """Raises UserError where another log has the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._retention = folder, retention_days
        self._lock = _locked(folder)
        for day in days_of(folder):
            mend(day.lines)
        self._place = last_place(folder)
        if read_head(folder) is None:
            write_head(folder, START)
        self._file: IO[bytes] | None = None
        self._inbox: list[_Waiting] = []
        self._wake = threading.Condition()
        self._closing = False
        self._closer = ThreadPoolExecutor(1, thread_name_prefix="audit-days")
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._closer.submit(self._settle).add_done_callback(_report)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def head(self) -> Place:
        """The last row that is on disk."""
        return self._place

    def append(self, row: AuditRow, now: datetime | None = None) -> None:
        """Write a row, and return once it is on disk. Raises OSError where it could not be written."""
        self.submit(row, now).result()

    def submit(self, row: AuditRow, now: datetime | None = None) -> Future[None]:
        """Have a row written; the future is done once it is on disk, and fails with OSError."""
        waiting = _Waiting(row, now or datetime.now(UTC), Future())
        with self._wake:
            if self._closing:
                raise ValueError("the audit log is closed")
            self._inbox.append(waiting)
            self._wake.notify()
        return waiting.written

    def close(self) -> None:
        """Write what waits, and turn every open day into Parquet. May be called twice."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        self._closer.shutdown()
        if not self._lock.closed:
            if self._file is not None:
                self._file.close()
            self._settle(all_days=True)
            self._lock.close()

    def _run(self) -> None:
        while batch := self._take():
            for day, rows in groupby(batch, key=self._day_of):
                self._commit(day, list(rows))

    def _take(self) -> list[_Waiting]:
        """Everything that waits; nothing when the log is closed."""
        with self._wake:
            self._wake.wait_for(lambda: self._inbox or self._closing)
            batch, self._inbox = self._inbox, []
        return batch

    def _day_of(self, waiting: _Waiting) -> str:
        """Never an earlier day than the file of the last row, whatever the clock says: the chain runs by day."""
        return max(waiting.ts.astimezone(UTC).date().isoformat(), self._place.day)

    def _commit(self, day: str, rows: list[_Waiting]) -> None:
        """Write rows of one day with one fsync, and answer those who wait."""
        place, lines = self._place, []
        for waiting in rows:
            stored = chained(waiting.row, waiting.ts.astimezone(UTC), day, place)
            place = Place(day, stored["seq"], stored["hash"])
            lines.append(line_of(stored) + "\n")
        fresh = day != self._place.day
        try:
            self._write(Day(self._folder, day), "".join(lines).encode(), fresh)
            write_head(self._folder, place)
        except OSError as error:
            for waiting in rows:
                waiting.written.set_exception(error)
            return
        self._place = place
        for waiting in rows:
            waiting.written.set_result(None)
        if fresh:
            self._closer.submit(self._settle).add_done_callback(_report)

    def _write(self, day: Day, data: bytes, fresh: bool) -> None:
        """Append and force to disk; what a failed write left behind is cut off again."""
        if fresh and self._file is not None:
            self._file.close()
            self._file = None
        if self._file is None:
            self._file = day.lines.open("ab")
        size = os.fstat(self._file.fileno()).st_size
        try:
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            self._file.close()
            self._file = None
            os.truncate(day.lines, size)
            raise

    def _settle(self, *, all_days: bool = False) -> None:
        """Close the days before the last row's, to which no row goes any more, and remove what is too old."""
        last = self._place.day
        for day in days_of(self._folder):
            if all_days or day.name < last:
                close_day(day)
        if self._retention is not None:
            expire(self._folder, datetime.now(UTC).date().isoformat(), self._retention)


def _report(settled: Future[None]) -> None:
    """A day that could not be closed stays as lines, which are read as well, and is closed with the next."""
    if (error := settled.exception()) is not None:
        _LOG.error("a day of the audit log could not be closed: %s", error)


def _locked(folder: Path) -> IO[bytes]:
    """The folder's lock, which the system takes back when this process ends, however it ends."""
    lock = (folder / ".lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise UserError(f"{folder}: another process writes this audit log: stop that gateway first.") from error
    return lock
