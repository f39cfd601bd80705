"""All the servers of an engine: those that live, what is asked of them, and what happens when one is lost.

Fleet -> VllmClient a server, Placement of sessions over them;  a server that fails and is not healthy any more: lost
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TypeVar

from tasks.rollout._vllm_client import LoopThread, ServerFault, VllmClient
from tasks.rollout._vllm_placement import Placement
from tasks.rollout.engine import EngineError, Pressure
from tasks.rollout.vllm_server import Endpoint
from tasks.supervision import log_end

T = TypeVar("T")
_READING_SECONDS = 1.0


class ServerLost(ServerFault):
    """The server is gone: nothing more is asked of it."""


class Fleet:
    """The servers of one engine, spoken to from one thread. Raises EngineError when one does not answer at first."""

    def __init__(self, endpoints: Sequence[Endpoint], turn_seconds: float) -> None:
        self.turn_seconds = turn_seconds
        self._why_lost = "none was given"
        self._loop = LoopThread("vllm-engine")
        self._reading: Future[Pressure | None] | None = None
        self._next_reading = 0.0
        self._clients = [VllmClient(endpoint.url, endpoint.log, turn_seconds) for endpoint in endpoints]
        self.placement = Placement(self._clients)
        with ExitStack() as undo:
            undo.callback(self.close)
            for client in self._clients:
                self._loop.run(client.connect())
            self.require_living()
            undo.pop_all()
        self.context = min(client.context for client in self._clients)
        """Tokens that fit into every server's context."""

    @property
    def living(self) -> list[VllmClient]:
        return self.placement.living

    def start(self, client: VllmClient, work: Awaitable[T]) -> Future[T]:
        """Have work done that asks a server; it fails with ServerLost where the server is not healthy any more."""
        return self._loop.start(_or_lost(client, work))

    def ask(self, client: VllmClient, work: Awaitable[T]) -> T | None:
        """What the server answers; None where it is lost over it."""
        try:
            return self.start(client, work).result()
        except ServerLost as error:
            self.lose(client, error)
            return None

    def pressure(self) -> Pressure | None:
        """The fullest cache and all preemptions, a new reading every second, each once; asks without waiting."""
        if self._reading is None:
            if time.monotonic() >= self._next_reading:
                self._next_reading = time.monotonic() + _READING_SECONDS
                self._reading = self._loop.start(_pressure(self.living))
            return None
        if not self._reading.done():
            return None
        found, self._reading = self._reading.result(), None
        return found

    def lose(self, client: VllmClient, error: ServerLost) -> None:
        self.placement.lose(client)
        self._why_lost = str(error)

    def require_living(self, *sessions: str) -> None:
        """Raises EngineError for these sessions when no server is left, with what became of the last one."""
        if not self.living:
            raise EngineError(f"no vLLM server is left; {self._why_lost}", sessions)

    def close(self) -> None:
        """Give up what is under way and the connections; the servers live on. May be called twice."""
        if self._loop.closed:
            return
        self._loop.cancel_all()
        for client in self._clients:
            self._loop.run(client.close())
        self._loop.close()


async def _pressure(clients: Sequence[VllmClient]) -> Pressure | None:
    """Of the servers that answer; one that does not is found out by its turns."""
    answers = await asyncio.gather(*(client.pressure() for client in clients), return_exceptions=True)
    faults = [answer for answer in answers if isinstance(answer, BaseException) and not isinstance(answer, EngineError)]
    if faults:
        raise faults[0]
    read = [answer for answer in answers if isinstance(answer, Pressure)]
    return Pressure(max(p.kv_use for p in read), sum(p.preemptions for p in read)) if read else None


async def _or_lost(client: VllmClient, work: Awaitable[T]) -> T:
    """A fault of a server that is not healthy any more is ServerLost, with the end of its log."""
    try:
        return await work
    except ServerFault as error:
        if await client.healthy():
            raise
        told = f"; {log_end(client.log)}" if client.log else ""
        raise ServerLost(f"the vLLM server {client.url} is lost ({error}){told}") from error
