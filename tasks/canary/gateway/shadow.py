"""A candidate in shadow: it answers copies of the champion's requests, which are recorded and shown to nobody.

a turn that was answered -> queue (full: dropped, counted) -> the candidate's turn -> audit row with shadow = true
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace

from tasks.canary.gateway.ledger import Ledger, measured
from tasks.canary.gateway.metrics import Metrics
from tasks.canary.gateway.turns import Turn, Turns, calls_of
from tasks.canary.gateway_config import GatewayConfig
from tasks.canary.routing import Route, Routes
from tasks.canary.serving import EnginePump
from tasks.canary.wire import WireError


class Shadow:
    """Copies wait here until one of `shadow_in_flight` workers is free. Of the event loop alone."""

    def __init__(
        self, routes: Routes, turns: Turns, pump: EnginePump, ledger: Ledger, metrics: Metrics, config: GatewayConfig
    ) -> None:
        self._routes, self._turns, self._pump = routes, turns, pump
        self._ledger, self._metrics, self._config = ledger, metrics, config
        self._copies: asyncio.Queue[tuple[Turn, Route]] = asyncio.Queue(config.shadow_queue)

    async def offer(self, turn: Turn | None) -> None:
        """Take a copy of a turn of the champion's, where a candidate is in shadow and the tenant lets it be copied."""
        state = self._routes.state
        if turn is None or not state.shadow or state.candidate is None or not turn.held.tenant.config.shadow:
            return
        if turn.held.route.served != state.champion:
            return
        if self._copies.full():
            self._metrics.shadow.labels("dropped").inc()
            return
        self._copies.put_nowait((turn, Route("candidate", state.candidate, state.stage)))

    async def run(self) -> None:
        """Answer copies until cancelled."""
        await asyncio.gather(*(self._work() for _ in range(self._config.shadow_in_flight)))

    async def _work(self) -> None:
        while True:
            turn, route = await self._copies.get()
            result = await self._answer(turn, route)
            self._metrics.shadow.labels(result).inc()

    async def _answer(self, turn: Turn, route: Route) -> str:
        """Have the candidate answer from the very tokens that the champion answered from, and record it."""
        sample = replace(turn.sample, session=uuid.uuid4().hex, policy_version=route.served.release)
        started = time.monotonic()
        try:
            completion = await self._turns.sampled(sample, route.served.digest)
            message = self._turns.message(completion, turn.number)
            said = {"completion": message, **measured(completion), **calls_of(message)}
        except WireError as error:
            said = {"status": error.code}
        if self._pump.alive:
            self._pump.close_session(sample.session)
        try:
            seconds = time.monotonic() - started
            await self._ledger.turn(turn.held, turn.said, seconds, route, turn=turn.number, shadow=True, **said)
        except WireError:
            return "failed"
        return "failed" if "status" in said else "answered"
