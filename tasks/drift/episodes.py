"""Windows and episodes: drift that persists opens one, quiet windows or a new champion end it.

judged window + ledger so far -> one line: the window, and whether an episode opened or closed with it -> ledger.jsonl

A line is on disk whole or not at all, so that after a kill the window is judged again or it is not: its verdict and
what follows from it are never apart.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from pydantic import AwareDatetime, Field

from data_contracts.gates import Verdict
from data_contracts.records import Record
from data_contracts.store import append_jsonl, read_jsonl
from tasks.drift.config import MISSING, DriftConfig

_EVENTS = uuid.UUID("5b0b6d0c-6a43-4c43-9d32-6f6f0d1b6a52")


class Window(Record):
    """A judged window: sessions of a release, from one source, that ended between `start` and `end`."""

    id: str = Field(min_length=1)
    source: str = Field(description="'gateway', or the run whose live sessions these were")
    release: int = Field(ge=1)
    start: AwareDatetime
    end: AwareDatetime
    last: str = Field(default="", description="its last session, by the time it ended")
    sessions: int = Field(ge=0)
    verdict: Verdict
    drifted: tuple[str, ...] = Field(default=(), description="checks that drifted")
    untold: tuple[str, ...] = Field(default=(), description="checks that could not tell")
    effects: dict[str, float] = Field(default={}, description="effect over its limit, by check: drift is 1 or more")

    @property
    def counts(self) -> bool:
        """Whether it speaks for a new run: values that stopped coming are a fault to mend, not a reason to train."""
        return bool(set(self.drifted) - {MISSING})


class Episode(Record):
    """Drift that persisted, from the window that showed it to its end."""

    id: str = Field(min_length=1)
    release: int = Field(ge=1)
    windows: tuple[str, ...] = Field(min_length=1, description="the drifted windows that opened it, oldest first")
    checks: tuple[str, ...] = Field(min_length=1, description="what drifted in them")
    opened: AwareDatetime

    @property
    def event(self) -> uuid.UUID:
        """Id of the one event that tells of it: the same however often it is sent."""
        return uuid.uuid5(_EVENTS, self.id)

    @property
    def reason(self) -> str:
        """One sentence for a person."""
        return f"release {self.release} drifted in {', '.join(self.checks)} ({len(self.windows)} windows)"


class Closing(Record):
    """The end of an episode."""

    episode: str
    at: AwareDatetime
    why: str


class Entry(Record):
    """One line of the ledger."""

    window: Window | None = None
    opened: Episode | None = None
    closed: Closing | None = None


class Ledger(NamedTuple):
    """Everything that was judged and opened, oldest first."""

    entries: tuple[Entry, ...]

    @property
    def windows(self) -> list[Window]:
        return [entry.window for entry in self.entries if entry.window]

    @property
    def episodes(self) -> list[Episode]:
        return [entry.opened for entry in self.entries if entry.opened]

    @property
    def closings(self) -> dict[str, Closing]:
        """By episode."""
        return {entry.closed.episode: entry.closed for entry in self.entries if entry.closed}

    @property
    def open(self) -> Episode | None:
        """The episode that has not ended; there is one at most."""
        last = self.episodes[-1:]
        return last[0] if last and last[0].id not in self.closings else None

    def since(self, release: int) -> list[Window]:
        """A release's windows after the last line that opened or closed an episode."""
        marks = [place for place, entry in enumerate(self.entries) if entry.opened or entry.closed]
        later = self.entries[marks[-1] + 1 :] if marks else self.entries
        return [entry.window for entry in later if entry.window and entry.window.release == release]


def read_ledger(path: Path) -> Ledger:
    """The ledger in a file; empty before the first window."""
    return Ledger(tuple(Entry.model_validate(row) for row in read_jsonl(path).rows))


def append_entry(path: Path, entry: Entry) -> None:
    """Put a line on disk."""
    append_jsonl(path, entry.model_dump_json(exclude_defaults=True))


def judge(ledger: Ledger, window: Window, config: DriftConfig) -> Entry:
    """The line that a newly judged window becomes; an episode of another release has to be closed before."""
    if ledger.open is not None:
        seen = [*ledger.since(window.release), window][-config.quiet :]
        if len(seen) < config.quiet or any(past.verdict is not Verdict.PASS for past in seen):
            return Entry(window=window)
        why = f"{config.quiet} windows in a row without drift"
        return Entry(window=window, closed=Closing(episode=ledger.open.id, at=window.end, why=why))
    recent = [*ledger.since(window.release), window][-config.windows :]
    drifted = [past for past in recent if past.counts]
    if len(drifted) < config.drifted or not window.counts or _cooling(ledger, window.end, config):
        return Entry(window=window)
    return Entry(window=window, opened=_episode(drifted))


def close_for(ledger: Ledger, champion: int, now: datetime) -> Entry | None:
    """The line that ends the open episode of a release that is no longer the champion."""
    if ledger.open is None or ledger.open.release == champion:
        return None
    return Entry(closed=Closing(episode=ledger.open.id, at=now, why=f"release {champion} is the champion"))


def _episode(drifted: Sequence[Window]) -> Episode:
    checks = dict.fromkeys(name for window in drifted for name in window.drifted)
    last = drifted[-1]
    return Episode(
        id=f"release-{last.release}-{drifted[0].id}",
        release=last.release,
        windows=tuple(window.id for window in drifted),
        checks=tuple(checks),
        opened=last.end,
    )


def _cooling(ledger: Ledger, at: datetime, config: DriftConfig) -> bool:
    ends = [closing.at for closing in ledger.closings.values()]
    return bool(ends) and at < max(ends) + timedelta(hours=config.cooldown_hours)
