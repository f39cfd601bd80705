"""Carries a move out, journaled step by step, and settles what a killed process left.

intent -> the pointer that the move is about -> applied -> what follows from it -> done

Everything that follows can be done twice, so a move whose pointer was written is finished, and any other undone: the
state is the one before or the one after, never between.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from models.registry_journal import Event, Journal, Kind, Move, now, pending
from models.registry_pointers import PointerStore
from models.registry_retention import Doomed
from models.registry_store import ReleaseStore


class Mover:
    """Moves of one agent's releases. Call it with the registry's lock held."""

    def __init__(
        self, journal: Journal, pointers: PointerStore, store: ReleaseStore, delete: Callable[[Doomed], None]
    ) -> None:
        self._journal, self._pointers, self._store, self._delete = journal, pointers, store, delete

    def carry_out(self, move: Move) -> Move:
        """The whole move, from intent to done."""
        self._journal.append(move, "intent")
        self._point(move)
        self._journal.append(move, "applied")
        return self._finish(move)

    def settle(self) -> list[Move]:
        """Finish or undo every move that a kill left between intent and done."""
        return [
            self._finish(move) if self._took_effect(move) else self._end(move, "undone")
            for move in pending(self._journal.moves())
        ]

    def _point(self, move: Move) -> None:
        """The one write that decides whether the move has happened."""
        match move.kind:
            case "promote" | "rollback":
                self._write_champion(move)
            case "quarantine" if move.moves_champion:
                self._write_champion(move)
            case "quarantine":
                self._write_quarantine(move)
            case "lift":
                self._write_quarantine(move)
            case "trial":
                self._pointers.write_trial(move.trial)
            case "collect" | "outside":
                pass  # the journal's next line decides; what somebody did outside was done already

    def _took_effect(self, move: Move) -> bool:
        if move.state == "applied":
            return True
        now_at = self._pointers.read()
        match move.kind:
            case "promote" | "rollback" | "outside":
                return now_at.champion == move.to_version
            case "quarantine" if move.moves_champion:
                return now_at.champion == move.to_version
            case "quarantine":
                return move.release in now_at.quarantined
            case "lift":
                return move.release not in now_at.quarantined
            case "trial":
                return now_at.trial == move.trial
            case "collect":
                return False

    def _finish(self, move: Move) -> Move:
        if move.kind == "quarantine":
            self._write_quarantine(move)
        if move.kind == "collect" and move.doomed is not None:
            self._delete(move.doomed)
        if move.moves_champion and move.to_version is not None:
            self._store.annotate(move.to_version, move)
        if move.release is not None:
            self._store.annotate(move.release, move)
        if move.kind != "trial":
            self._end_void_trial()
        return self._end(move, "done")

    def _end_void_trial(self) -> None:
        """A trial that counts no more is taken away, or it would count again after a rollback."""
        found = self._pointers.read()
        if found.trial is not None and found.live_trial is None:
            self._pointers.write_trial(None)

    def _end(self, move: Move, state: Event) -> Move:
        self._journal.append(move, state)
        return move.model_copy(update={"state": state})

    def _write_champion(self, move: Move) -> None:
        if move.to_version is not None:
            self._pointers.write_champion(move.to_version)

    def _write_quarantine(self, move: Move) -> None:
        if move.release is not None:
            self._pointers.write_quarantine(move.release, move.why if move.kind == "quarantine" else None)


def new_move(kind: Kind, champion: int | None, to: int | None, who: str, why: str, **more: Any) -> Move:
    """A move that is about to happen, while `champion` serves."""
    return Move(
        id=uuid.uuid4().hex, kind=kind, from_version=champion, to_version=to, who=who, why=why, at=now(), **more
    )
