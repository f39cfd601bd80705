"""The server: it owns the engine from `with` to its end, loads what is to be served, and drops what nobody needs.

registry's state -> follow: load, route, drop;  HTTP -> Endpoints -> EnginePump
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from operator import methodcaller
from typing import Any, Self, TypeVar

import uvicorn

from models.chat import Chat
from models.trial import Serving
from tasks.canary.audit import AuditLog
from tasks.canary.conversation import Conversation, Memory
from tasks.canary.gateway.endpoints import Endpoints
from tasks.canary.gateway.ledger import Ledger
from tasks.canary.gateway.metrics import Metrics
from tasks.canary.gateway.resuming import Resumed
from tasks.canary.gateway.shadow import Shadow
from tasks.canary.gateway.turns import Turns
from tasks.canary.gateway_config import GatewayConfig
from tasks.canary.routing import Route, Routes, Served, State, state_of
from tasks.canary.serving import EnginePump
from tasks.canary.tenants import Tenants
from tasks.rollout.engine import Engine, EngineError
from tasks.rollout.toolformats import FORMATS

T = TypeVar("T")
_START_SECONDS = 30.0


class Gateway:
    """The server, from `with` to its end: it owns the engine meanwhile and listens at `url`.

    Without a champion it answers 503 until `follow` brings one. `tool_format` names how the model writes calls,
    `slots` how many sessions the engine holds at once, where it does not make room by itself.
    """

    def __init__(
        self,
        engine: Engine,
        chat: Chat,
        champion: Served | None,
        audit: AuditLog,
        config: GatewayConfig | None = None,
        *,
        tool_format: str = "hermes",
        slots: int | None = None,
    ) -> None:
        self.config = config or GatewayConfig()
        self.routes = Routes(champion)
        self.metrics = Metrics()
        self.tool_format = FORMATS[tool_format]
        self.trouble: str | None = None
        self.url = ""
        self._audit = audit
        self._tenants = Tenants(self.config.tenants)
        self._loaded: set[Served] = set()
        self._pump = EnginePump(engine, slots)
        self._memory = Memory(self.config.max_sessions, self._pump.close_session)
        ledger = Ledger(audit, self.metrics, self.config)
        turns = Turns(self._pump, chat, self.tool_format, ledger, self.metrics, self.config)
        self._shadow = Shadow(self.routes, turns, self._pump, ledger, self.metrics, self.config)
        endpoints = Endpoints(
            self.config,
            self.routes,
            self._memory,
            self._tenants,
            turns,
            self._shadow,
            ledger,
            self.metrics,
            self._health,
            self._pump.streams,
        )
        self._socket = socket.create_server((self.config.host, self.config.port), backlog=512)
        # asyncio turns Nagle's algorithm off only where a socket names its protocol, which this one does not: headers
        # and body are two writes, and the second would wait 40 ms for the client's delayed acknowledgement
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = uvicorn.Config(endpoints.app(), log_level="warning", access_log=False, lifespan="off")
        self._server = uvicorn.Server(settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="gateway", daemon=True)

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._close)
            for served in self.routes.state.releases:
                self.load(served)
            self._thread.start()
            self._await_start()
            undo.pop_all()
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def alive(self) -> bool:
        """Whether engine and server still run."""
        return self._pump.alive and self._thread.is_alive()

    def load(self, served: Served) -> None:
        """Have the engine serve a release; raises EngineError when what it loads is not what the release pins."""
        if served in self._loaded:
            return
        digest = self._pump.call(lambda engine: engine.load_adapter(served.release, served.adapter)).result()
        if digest != served.digest:
            self._pump.call(methodcaller("drop_adapter", served.release)).result()
            raise EngineError(f"{served.release} pins weights {served.digest[:12]}, the engine loaded {digest[:12]}")
        self._loaded.add(served)

    def begin(self, candidate: Served, share: float, stage: int = 0) -> None:
        """Load a candidate and send it `share` of the new sessions."""
        self.load(candidate)
        self.routes.begin(candidate, share, stage)

    def follow(self, serving: Serving | None) -> None:
        """Serve what the registry says, once it is loaded; sessions that have begun stay where they are.

        A candidate that cannot be loaded leaves the champion alone with all new sessions, and raises EngineError.
        """
        if serving is None:
            return
        state = state_of(serving)
        if state == self.routes.state:
            return
        champion, *others = state.releases
        self.load(champion)
        try:
            for served in others:
                self.load(served)
        except EngineError:
            self.routes.state = State(champion)
            raise
        self.routes.state = state

    def resume(self, sessions: Sequence[Resumed], find: Callable[[str], Served | None]) -> None:
        """Let sessions of before a restart go on with their release; those of a release that is gone begin anew.

        To be called before the first champion is followed, while every request is still refused.
        """
        for release in sorted({session.release for session in sessions}):
            if (served := find(release)) is not None:
                self.load(served)
                mine = [session for session in sessions if session.release == release]
                self._on_loop(partial(self._remember, mine, served))

    def tidy(self) -> None:
        """Forget sessions that have been idle for long, and drop releases that no session needs any more."""
        for served in self._on_loop(self._unneeded):
            with suppress(EngineError):  # a turn of it is under way: the next time
                self._pump.call(methodcaller("drop_adapter", served.release)).result()
                self._loaded.discard(served)

    def _unneeded(self) -> set[Served]:
        self._memory.expire(self.config.session_seconds)
        return self._loaded - set(self.routes.state.releases) - self._memory.releases

    def _remember(self, sessions: Sequence[Resumed], served: Served) -> None:
        for session in sessions:
            if tenant := self._tenants.named(session.tenant):
                route = Route(session.arm, served, session.stage)
                begin = partial(Conversation, session.session, route, tenant, session.turn)
                self._memory.get(session.session, begin)

    def _health(self) -> dict[str, Any]:
        state = self.routes.state
        status = "ok" if self._pump.alive else "engine stopped"
        if state.champion is None:
            status = "no champion: the gateway serves as soon as a release is promoted"
        body: dict[str, Any] = {"status": status, "sessions": len(self._memory), "audit_head": self._audit.head.hash}
        body |= {"champion": state.champion.release if state.champion else None}
        if state.candidate:
            trial = {"release": state.candidate.release, "share": state.share, "shadow": state.shadow}
            body |= {"candidate": trial | {"stage": state.stage}}
        return body | ({"trouble": self.trouble} if self.trouble else {})

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        shadow = asyncio.create_task(self._shadow.run())
        await self._server.serve(sockets=[self._socket])
        shadow.cancel()

    def _on_loop(self, function: Callable[[], T]) -> T:
        """Run `function` on the server's thread, which alone knows the sessions."""

        async def there() -> T:
            return function()

        if self._loop is None:
            raise RuntimeError("the gateway is not open: enter it first")
        return asyncio.run_coroutine_threadsafe(there(), self._loop).result()

    def _await_start(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise EngineError("the gateway did not start: see the log above")
            time.sleep(0.005)

    def _close(self) -> None:
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()
        with suppress(EngineError):  # a pump that has stopped holds no sessions
            self._memory.clear()
        self._pump.close()
