"""Which server has which session: the first request goes to the least loaded, later ones to the same.

session -> server that lives, kept until the session is closed or its server is lost
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)


class Placement(Generic[S]):
    """Sessions over servers. A session stays where its prefix is cached; of equals the first server is taken."""

    def __init__(self, servers: list[S]) -> None:
        self._sessions: dict[S, set[str]] = {server: set() for server in servers}
        self._where: dict[str, S] = {}

    @property
    def living(self) -> list[S]:
        return list(self._sessions)

    def place(self, session: str) -> S:
        """The session's server, chosen now if need be; there has to be one left."""
        if session not in self._where:
            server = min(self._sessions, key=lambda server: len(self._sessions[server]))
            self._where[session] = server
            self._sessions[server].add(session)
        return self._where[session]

    def forget(self, session: str) -> None:
        server = self._where.pop(session, None)
        if server is not None:
            self._sessions[server].discard(session)

    def lose(self, server: S) -> None:
        """Place nothing on `server` any more; its sessions are placed anew when they ask again."""
        for session in self._sessions.pop(server, set()):
            del self._where[session]
