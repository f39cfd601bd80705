"""What was about to happen to the releases, written down before it happens.

intent -> (the alias moves) -> applied -> (tags are set) -> done      or      intent -> undone

One JSON object a line, each flushed to the disk before the next step. The file is only ever appended to, under
the registry's lock; the torn last line of a killed writer is dropped, any other unreadable line is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from data_contracts.gates import Gate
from data_contracts.records import Record
from models.registry_retention import Doomed
from models.trial import Trial

Event = Literal["intent", "applied", "done", "undone"]
Kind = Literal["promote", "rollback", "outside", "trial", "quarantine", "lift", "collect"]


class Move(Record):
    """One move of the champion alias, or a change of what else may be moved.

    `outside`: somebody moved the alias in MLflow, and this was noticed afterwards. `trial`: sessions of `from_version`,
    the champion, go to `to_version` as `trial` says; without one, a trial has ended. `quarantine` and `lift` are of
    `release`; the quarantine of a champion moves the alias too. `collect` deletes what is in `doomed`.
    """

    id: str
    kind: Kind
    from_version: int | None
    to_version: int | None
    who: str
    why: str
    evidence: tuple[Gate, ...] = ()
    forced: bool = Field(default=False, description="somebody promoted it without evidence")
    at: str = Field(description="UTC, ISO 8601")
    trial: Trial | None = None
    release: int | None = None
    doomed: Doomed | None = None
    state: Event = "intent"

    @property
    def moves_champion(self) -> bool:
        return self.kind in ("promote", "rollback", "outside", "quarantine") and self.from_version != self.to_version

    def concerns(self, version: int) -> bool:
        """Whether it is part of this release's history."""
        moved = (self.from_version, self.to_version) if self.moves_champion or self.kind == "trial" else ()
        deleted = self.doomed.releases if self.doomed else ()
        return version in (*moved, self.release, *deleted)


class Journal:
    """The append-only file of moves."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, move: Move, event: Event) -> None:
        """Write one line and flush it to the disk. Call it with the registry's lock held."""
        body = move.model_dump(mode="json", exclude={"state"}) if event == "intent" else {"id": move.id}
        line = json.dumps({"event": event, "written": now(), **body}) + "\n"
        fresh = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as handle:
            handle.truncate(_whole_lines(self.path))
            handle.write(line.encode())
            handle.flush()
            os.fsync(handle.fileno())
        if fresh:
            _fsync_folder(self.path.parent)

    def moves(self) -> list[Move]:
        """Every move, oldest first, each with the last state written for it."""
        moves: dict[str, Move] = {}
        for number, line in enumerate(self._lines(), start=1):
            entry = self._parse(number, line)
            event = entry.pop("event")
            entry.pop("written")
            if event == "intent":
                moves[entry["id"]] = Move(**entry)
            else:
                moves[entry["id"]] = moves[entry["id"]].model_copy(update={"state": event})
        return list(moves.values())

    def _lines(self) -> list[bytes]:
        if not self.path.exists():
            return []
        return self.path.read_bytes()[: _whole_lines(self.path)].splitlines()

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise RuntimeError(
                f"{self.path}:{number} is no JSON: restore the file, or move it away and run "
                "`reconcile` (the champion stays, its history starts anew)"
            ) from error
        return entry


def pending(moves: Iterable[Move]) -> list[Move]:
    """Moves that a kill left between intent and done."""
    return [move for move in moves if move.state in ("intent", "applied")]


def champions(moves: Iterable[Move]) -> list[int | None]:
    """The stack of champions, the present one last: a promotion pushes, going back pops down to its target."""
    stack: list[int | None] = []
    for move in moves:
        if move.state != "done" or not move.moves_champion:
            continue
        if move.kind in ("rollback", "quarantine") and move.to_version in stack:
            while stack[-1] != move.to_version:
                stack.pop()
        else:
            stack.append(move.to_version)
    return stack


def now() -> str:
    """UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _whole_lines(path: Path) -> int:
    """Bytes up to and including the last newline."""
    return path.read_bytes().rfind(b"\n") + 1


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
