"""An episode is told once, whatever is killed meanwhile.

open episode -> intent on disk -> does the server know its event? no: send -> the server knows it -> done on disk

The event's id follows from the episode, so that the server, too, takes it once. After a kill the same steps run again,
and the server is asked first.
"""

from __future__ import annotations

import json
import time
from typing import Protocol

from data_contracts.errors import UserError
from data_contracts.store import append_jsonl, read_jsonl
from tasks.drift.episodes import Episode
from tasks.drift.folder import DriftFolder

CONFIRM_SECONDS = 60.0


class Server(Protocol):
    """Who starts runs by events."""

    def knows(self, episode: Episode) -> bool:
        """Whether the event of an episode has reached it for good."""

    def send(self, episode: Episode) -> None:
        """Send the event of an episode."""


def tell(folder: DriftFolder, episode: Episode, server: Server) -> bool:
    """Have the server know of an episode; True when this call told it."""
    if is_told(folder, episode):
        return False
    _note(folder, episode, "intent")
    fresh = not server.knows(episode)
    if fresh:
        server.send(episode)
        _confirm(server, episode)
    _note(folder, episode, "done")
    return fresh


def is_told(folder: DriftFolder, episode: Episode) -> bool:
    """Whether an episode was told and confirmed."""
    return {"episode": episode.id, "state": "done"} in read_jsonl(folder.told).rows


def _confirm(server: Server, episode: Episode) -> None:
    deadline = time.monotonic() + CONFIRM_SECONDS
    while not server.knows(episode):
        if time.monotonic() > deadline:
            raise UserError(
                f"the Prefect server took the event of {episode.id} and has not stored it after {CONFIRM_SECONDS:g} s: "
                "see its log; the next drift check asks again."
            )
        time.sleep(0.2)


def _note(folder: DriftFolder, episode: Episode, state: str) -> None:
    append_jsonl(folder.told, json.dumps({"episode": episode.id, "state": state}))
