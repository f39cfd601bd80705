"""Sessions that were under way when a gateway ended: they go on with the release they had.

audit log of the last days -> sessions with turns, without outcome, not idle for too long -> Resumed
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from tasks.canary.audit import read_audit
from tasks.canary.sessions import Arm

_FIELDS = ["tenant", "session", "release", "arm", "stage", "turn"]


class Resumed(NamedTuple):
    """A session and where it was; `turn` is its next."""

    tenant: str
    session: str
    release: str
    arm: Arm
    stage: int
    turn: int


def open_sessions(folder: Path, idle_seconds: float, most: int, now: datetime | None = None) -> list[Resumed]:
    """The sessions of an audit log that may go on: at most so many, the longest idle left out first."""
    now = now or datetime.now(UTC)
    since = now - timedelta(seconds=idle_seconds)
    days = [(since + timedelta(days=n)).date().isoformat() for n in range((now.date() - since.date()).days + 1)]
    rows = read_audit(folder, days, columns=["kind", "ts", "shadow", *_FIELDS])
    rows = rows[~rows["shadow"].astype(bool)]
    ended = set(rows[rows["kind"] == "outcome"]["session"])
    last = rows[(rows["ts"] >= since) & ~rows["session"].isin(ended)].groupby("session").tail(1).tail(most)
    return [
        Resumed(tenant, session, release, arm, stage, turn + 1)
        for tenant, session, release, arm, stage, turn in last[_FIELDS].values.tolist()
    ]
