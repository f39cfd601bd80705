"""Live traffic in windows: each ended session is in one window, each window is cut the same however often it is tried.

audit log -> when each session ended -> so many sessions, or so many hours -> windows after the last one judged

A session has ended with its outcome, or when nothing came of it for `settle_minutes`; what is told later comes too
late, so that no session moves from one window to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from tasks.canary.audit import read_audit
from tasks.drift.config import DriftConfig
from tasks.drift.tables import audit_table

LAG = timedelta(seconds=10)
"""What ended less than this ago is left for the next time: its rows may still be on their way to the disk."""


class Cut(NamedTuple):
    """A window before it is judged: its sessions' events, and from when to when they ended."""

    events: pd.DataFrame
    start: datetime
    end: datetime
    last: str

    def table(self) -> pd.DataFrame:
        """One row a session."""
        return audit_table(self.events)


class Cursor(NamedTuple):
    """How far the traffic was judged: the end of the last window, and its last session."""

    end: datetime
    last: str


def cut_windows(audit: Path, release: str, config: DriftConfig, cursor: Cursor | None, now: datetime) -> Iterator[Cut]:
    """The windows of a release that are complete at `now` and come after `cursor`, oldest first."""
    events = _events(audit, release, cursor, config)
    ended = _ended(events, timedelta(minutes=config.settle_minutes))
    ended = ended[ended["ended"] <= pd.Timestamp(now - LAG)].sort_values(["ended", "session"], ignore_index=True)
    if cursor is not None:
        at, last = pd.Timestamp(cursor.end), cursor.last
        ended = ended[(ended["ended"] > at) | ((ended["ended"] == at) & (ended["session"] > last))]
    parts = _by_time(ended, config, cursor, now) if config.window_hours else _by_count(ended, config)
    for chosen, start, end in parts:
        inside = events.merge(chosen, on="session")
        last = str(chosen["session"].iloc[-1]) if len(chosen) else ""
        yield Cut(inside[inside["ts"] <= inside["ended"]], start, end, last)


def _events(audit: Path, release: str, cursor: Cursor | None, config: DriftConfig) -> pd.DataFrame:
    """A release's rows, of those days alone in which sessions of the coming windows can have begun."""
    days = None
    if cursor is not None:
        earliest = (cursor.end - timedelta(days=1, minutes=config.settle_minutes)).date().isoformat()
        days = sorted({path.stem for path in audit.glob("*") if path.stem >= earliest})
    rows = read_audit(audit, days)
    rows = rows[rows["release"] == release]
    if "shadow" in rows:
        rows = rows[~rows["shadow"].fillna(False).astype(bool)]
    return rows.sort_values(["session", "ts"], ignore_index=True)


def _ended(events: pd.DataFrame, settle: timedelta) -> pd.DataFrame:
    """`session` and the time it `ended`: its first outcome, or the first silence that lasted long enough."""
    after = events.groupby("session")["ts"].shift(-1)
    told = events["kind"] == "outcome"
    silent = after.isna() | (after - events["ts"] > settle)
    ends = events["ts"].where(told, events["ts"] + settle)
    first = events.assign(ended=ends)[told | silent].groupby("session", as_index=False).first()
    return first[["session", "ended"]]


Part = tuple[pd.DataFrame, datetime, datetime]


def _by_count(ended: pd.DataFrame, config: DriftConfig) -> Iterator[Part]:
    n = config.window_sessions
    for start in range(0, len(ended) - n + 1, n):
        chosen = ended.iloc[start : start + n]
        yield chosen, _time(chosen["ended"].iloc[0]), _time(chosen["ended"].iloc[-1])


def _by_time(ended: pd.DataFrame, config: DriftConfig, cursor: Cursor | None, now: datetime) -> Iterator[Part]:
    """Windows side by side since the first session ended, empty ones too: no traffic is no all-clear."""
    if cursor is None and ended.empty:
        return
    length = timedelta(hours=config.window_hours or 0)
    start = cursor.end if cursor is not None else _time(ended["ended"].iloc[0]) - timedelta(microseconds=1)
    while start + length <= now - LAG:
        end = start + length
        yield ended[(ended["ended"] > pd.Timestamp(start)) & (ended["ended"] <= pd.Timestamp(end))], start, end
        start = end


def _time(value: pd.Timestamp) -> datetime:
    moment: datetime = value.to_pydatetime()
    return moment
