"""The gateway's paths over HTTP: who asks, which session it is, and the answer in OpenAI's form.

Request -> tenant -> session -> Turns -> Response;  every mistake -> error JSON, every request -> metrics
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException

from tasks.canary.conversation import Conversation, Memory
from tasks.canary.gateway.ledger import Ledger
from tasks.canary.gateway.metrics import Metrics
from tasks.canary.gateway.shadow import Shadow
from tasks.canary.gateway.telling import Teller, events
from tasks.canary.gateway.turns import Answer, Turns
from tasks.canary.gateway_config import GatewayConfig
from tasks.canary.routing import NoChampion, Routes
from tasks.canary.tenants import Refused, Tenant, Tenants
from tasks.canary.wire import ChatRequest, Feedback, WireError, chunk_head, models_body, parse_body
from tasks.canary.wire_text import TextRequest

_LONGEST_ID = 1024
Handler = Callable[[Request, Tenant], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Everything that a request needs. Of the event loop alone."""

    config: GatewayConfig
    routes: Routes
    memory: Memory
    tenants: Tenants
    turns: Turns
    shadow: Shadow
    ledger: Ledger
    metrics: Metrics
    health: Callable[[], dict[str, Any]]
    streams: bool
    _telling: set[asyncio.Task[Answer]] = field(default_factory=set)

    def app(self) -> FastAPI:
        app = FastAPI(title="RatchetRL gateway", docs_url=None, redoc_url=None, openapi_url=None)
        posts: dict[str, Handler] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._text,
            "/feedback": self._feedback,
        }
        for path, handle in posts.items():
            app.add_route(path, self._guarded(path, handle), methods=["POST"])
        app.add_route("/v1/models", self._guarded("/v1/models", self._models), methods=["GET"])
        app.add_route("/health", self._health, methods=["GET"])
        app.add_route("/metrics", self._metrics, methods=["GET"])
        app.add_exception_handler(HTTPException, _unknown)
        app.add_exception_handler(Exception, _broken)
        return app

    def _guarded(self, path: str, handle: Handler) -> Callable[[Request], Awaitable[Response]]:
        """A handler behind the tenants' door, its refusals as errors, its requests counted."""

        async def guarded(request: Request) -> Response:
            started = time.monotonic()
            try:
                with self.metrics.in_flight.track_inprogress():
                    response = await handle(request, self.tenants.of(request.headers.get("authorization")))
            except WireError as error:
                response = self._refusal(error)
            if not isinstance(response, StreamingResponse):  # those are counted at their end
                self.metrics.answered(path, response.status_code, response.headers, time.monotonic() - started)
            return response

        return guarded

    def _refusal(self, error: WireError) -> Response:
        if isinstance(error, Refused):
            self.metrics.refused.labels(error.tenant, error.reason).inc()
        return JSONResponse(error.body(), error.status, headers=error.headers)

    async def _chat(self, request: Request, tenant: Tenant) -> Response:
        asked: ChatRequest = parse_body(ChatRequest, await self._body(request, tenant))
        held = self._session(request, tenant, asked.model)
        retried = request.headers.get("x-stainless-retry-count", "0") != "0"
        if asked.stream:
            return await self._streamed(held, asked, retried)
        answer = await self._visit(held, lambda: self.turns.of_chat(held, asked, retried=retried))
        return self._answered(held, answer)

    async def _text(self, request: Request, tenant: Tenant) -> Response:
        asked: TextRequest = parse_body(TextRequest, await self._body(request, tenant))
        held = self._session(request, tenant, asked.model)
        return self._answered(held, await self._visit(held, lambda: self.turns.of_text(held, asked)))

    def _answered(self, held: Conversation, answer: Answer) -> Response:
        """The response; a candidate in shadow gets its copy once that was sent."""
        later = BackgroundTask(self.shadow.offer, answer.turn)
        return JSONResponse(answer.body, headers=_headers(held), background=later)

    async def _streamed(self, held: Conversation, asked: ChatRequest, retried: bool) -> Response:
        """The turn as events. It goes on when the client hangs up, so that it is recorded, and not sampled twice."""
        teller, started = Teller(self.turns.chat, self.turns.form), time.monotonic()
        head = chunk_head(held.session, held.turn, held.route.served.release, held.route.served.digest)
        turn = asyncio.create_task(
            self._visit(held, lambda: self.turns.of_chat(held, asked, retried=retried, teller=teller))
        )
        self._telling.add(turn)
        turn.add_done_callback(lambda ended: self._told(held, ended, teller, started))
        first = await teller.pieces.get()
        if first is None:
            await turn  # an error before anything was told has a status of its own
        headers = _headers(held) | {"x-ratchet-stream": "tokens" if self.streams else "turn"}
        body = events(_all(first, teller), head, turn, usage=asked.stream_options.include_usage)
        later = BackgroundTask(self._copied, turn)
        return StreamingResponse(body, media_type="text/event-stream", headers=headers, background=later)

    async def _copied(self, turn: asyncio.Task[Answer]) -> None:
        if turn.exception() is None:
            await self.shadow.offer(turn.result().turn)

    def _told(self, held: Conversation, turn: asyncio.Task[Answer], teller: Teller, started: float) -> None:
        self._telling.discard(turn)
        teller.pieces.put_nowait(None)
        error = turn.exception()
        status = error.status if isinstance(error, WireError) else 200 if error is None else 500
        self.metrics.answered("/v1/chat/completions", status, _headers(held), time.monotonic() - started)

    async def _visit(self, held: Conversation, turn: Callable[[], Awaitable[Answer]]) -> Answer:
        """A turn of the session, one at a time, within what its tenant may ask."""
        try:
            with held.tenant.visit():
                async with held.lock:
                    return await turn()
        except WireError as error:
            error.headers = {**_headers(held), **error.headers}
            raise

    async def _models(self, _: Request, __: Tenant) -> Response:
        return JSONResponse(models_body([self.config.model, *(s.release for s in self.routes.state.releases)]))

    async def _feedback(self, request: Request, tenant: Tenant) -> Response:
        told: Feedback = parse_body(Feedback, await self._body(request, tenant))
        held = self.memory.find(tenant.scoped(told.session))
        if held is None:
            raise WireError(404, "unknown_session", f"no session {told.session!r} is remembered")
        async with held.lock:
            await self.ledger.outcome(held, told.outcome, told.told())
            self.memory.drop(held.session)
        return JSONResponse({"status": "ok"}, headers=_headers(held))

    async def _health(self, _: Request) -> Response:
        body = self.health()
        return JSONResponse(body, 200 if body["status"] == "ok" else 503)

    async def _metrics(self, _: Request) -> Response:
        self.metrics.sessions.set(len(self.memory))
        self.metrics.serving(self.routes.state)
        return Response(self.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def _session(self, request: Request, tenant: Tenant, model: str) -> Conversation:
        """The conversation that a request belongs to; a new one is given its route here."""
        given = request.headers.get("x-session-id") or uuid.uuid4().hex
        if len(given) > _LONGEST_ID:
            raise WireError(400, "invalid_value", f"x-session-id has at most {_LONGEST_ID} characters")
        name = tenant.scoped(given)
        try:
            return self.memory.get(
                name, lambda: Conversation(name, self.routes.named(model) or self.routes.assign(name), tenant)
            )
        except NoChampion as error:
            raise WireError(503, "no_champion", str(error), {"retry-after": "5"}) from error

    async def _body(self, request: Request, tenant: Tenant) -> bytes:
        body, most = bytearray(), self.config.max_request_bytes
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise Refused(tenant.name, "size", 413, "request_too_large", f"a request has at most {most} bytes")
        return bytes(body)


async def _all(first: str | None, teller: Teller) -> AsyncIterator[str]:
    piece = first
    while piece is not None:
        yield piece
        piece = await teller.pieces.get()


async def _unknown(_: Request, error: Exception) -> Response:
    """An unknown path or method, in OpenAI's form."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    known = "/v1/models, /v1/chat/completions, /v1/completions, /feedback, /health, /metrics"
    return JSONResponse(WireError(status, "not_found", f"there are {known}").body(), status)


async def _broken(_: Request, error: Exception) -> Response:
    """A fault of ours, in OpenAI's form; uvicorn logs the trace."""
    return JSONResponse(WireError(500, "internal_error", f"the gateway failed: {type(error).__name__}").body(), 500)


def _headers(held: Conversation) -> dict[str, str]:
    route = held.route
    return {
        "x-session-id": held.tenant.given(held.session),
        "x-ratchet-release": route.served.release,
        "x-ratchet-digest": route.served.digest,
        "x-ratchet-arm": route.arm,
        "x-ratchet-stage": str(route.stage),
    }
