"""The event that tells of drift: how Prefect's server is sent it and asked for it, and what it starts.

open episode -> event `ratchet.drift.detected` -> trigger -> one run of post_train
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import httpx
from prefect.client.orchestration import get_client
from prefect.events import Event, Resource

from tasks.drift.episodes import Episode
from tasks.drift.folder import DriftFolder

EVENT = "ratchet.drift.detected"


def resource_of(name: str, release: int | str) -> str:
    """Prefect's id of a release; '*' for any."""
    return f"ratchet.release.{name}.{release}"


@dataclass(frozen=True, slots=True)
class PrefectServer:
    """The server of PREFECT_API_URL, over HTTP: its answer says that it has the event, a websocket's silence does not.

    Raises `httpx.HTTPError` where it cannot be reached.
    """

    name: str
    folder: DriftFolder

    def knows(self, episode: Episode) -> bool:
        """Whether the event is stored."""
        found = self._post("/events/filter", {"filter": {"id": {"id": [str(episode.event)]}}})
        return bool(found.json()["events"])

    def send(self, episode: Episode) -> None:
        """Send the event; the server takes one id once."""
        event = Event(
            id=episode.event,
            event=EVENT,
            resource=Resource({"prefect.resource.id": resource_of(self.name, episode.release)}),
            payload=self._payload(episode),
        )
        self._post("/events", [event.model_dump(mode="json")])

    def _payload(self, episode: Episode) -> dict[str, Any]:
        """References, not state: where the windows and the candidates lie."""
        candidates = str(self.folder.candidates(episode.id))
        return {
            "episode": episode.id,
            "release": episode.release,
            "checks": list(episode.checks),
            "windows": [str(self.folder.report(window)) for window in episode.windows],
            "candidates": candidates,
            "reason": f"{episode.reason}; sessions to make problems of: {candidates}",
        }

    def _post(self, path: Literal["/events", "/events/filter"], body: Any) -> httpx.Response:
        with get_client(sync_client=True) as client:
            reply = client.request("POST", path, json=body)
            reply.raise_for_status()
            return reply
