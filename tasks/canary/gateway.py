"""The gateway: an OpenAI-compatible server that sends each session to the champion or to the candidate.

HTTP request -> session's conversation (route, ids) -> EnginePump -> audit row -> HTTP response

It serves a subset: POST /v1/chat/completions (not streamed), GET /v1/models, GET /health, POST /feedback. The header
`x-session-id` says which session a request belongs to; a request without one begins a session and is told its id.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Self

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from models.chat import Chat
from tasks.canary.audit import AuditLog, AuditRow
from tasks.canary.conversation import Conversation, Exchange, Memory
from tasks.canary.gateway_config import GatewayConfig
from tasks.canary.routing import Routes, Served
from tasks.canary.serving import EnginePump
from tasks.canary.wire import (
    ChatRequest,
    Feedback,
    Message,
    WireError,
    assistant_message,
    completion_body,
    models_body,
    parse_body,
)
from tasks.rollout.engine import Completion, ContextFull, Engine, EngineError, SampleRequest

_LOG = logging.getLogger(__name__)
_START_SECONDS = 30.0
_LONGEST_ID = 1024


class Gateway:
    """The server, from `with` to its end: it owns the engine meanwhile and listens at `url`."""

    def __init__(
        self, engine: Engine, chat: Chat, champion: Served, audit: AuditLog, config: GatewayConfig | None = None
    ) -> None:
        self.config = config or GatewayConfig()
        self.routes = Routes(champion)
        self.url = ""
        self._chat, self._audit = chat, audit
        self._pump = EnginePump(engine)
        self._memory = Memory(self.config.max_sessions, self._pump.close_session)
        self._socket = socket.create_server((self.config.host, self.config.port), backlog=512)
        settings = uvicorn.Config(self._app(), log_level="warning", access_log=False, lifespan="off")
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="gateway", daemon=True)

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._close)
            self.load(self.routes.champion)
            self._thread.start()
            self._await_start()
            undo.pop_all()
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

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

    def load(self, served: Served) -> None:
        """Have the engine serve a release; raises EngineError when what it loads is not what the release pins."""
        digest = self._pump.call(lambda engine: engine.load_adapter(served.release, served.adapter)).result()
        if digest != served.digest:
            raise EngineError(f"{served.release} pins weights {served.digest[:12]}, the engine loaded {digest[:12]}")

    def begin(self, candidate: Served, share: float, stage: int = 0) -> None:
        """Load a candidate and send it `share` of the new sessions."""
        self.load(candidate)
        self.routes.begin(candidate, share, stage)

    def _app(self) -> FastAPI:
        app = FastAPI(title="RatchetRL gateway", docs_url=None, redoc_url=None, openapi_url=None)
        app.add_route("/v1/chat/completions", self._guarded(self._complete), methods=["POST"])
        app.add_route("/v1/models", self._models, methods=["GET"])
        app.add_route("/health", self._health, methods=["GET"])
        app.add_route("/feedback", self._guarded(self._feedback), methods=["POST"])
        app.add_exception_handler(HTTPException, _refused)
        app.add_exception_handler(Exception, _broken)
        return app

    def _guarded(self, handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                return await handle(request)
            except WireError as error:
                return JSONResponse(error.body(), error.status)

        return guarded

    async def _models(self, _: Request) -> Response:
        served = [self.routes.champion, self.routes.candidate]
        return JSONResponse(models_body([self.config.model, *(s.release for s in served if s is not None)]))

    async def _health(self, _: Request) -> Response:
        healthy = self._pump.alive
        body = {"status": "ok" if healthy else "engine stopped", "sessions": len(self._memory)}
        return JSONResponse(body, 200 if healthy else 503)

    async def _complete(self, request: Request) -> Response:
        asked: ChatRequest = parse_body(ChatRequest, await self._body(request))
        session = _session(request)
        held = self._memory.get(session, lambda: self.routes.named(asked.model) or self.routes.assign(session))
        retried = request.headers.get("x-stainless-retry-count", "0") != "0"
        async with held.lock:
            try:
                answer = await self._answer(held, asked, retried)
            except WireError as error:
                return JSONResponse(error.body(), error.status, headers=_headers(held))
        return JSONResponse(answer, headers=_headers(held))

    async def _answer(self, held: Conversation, asked: ChatRequest, retried: bool) -> dict[str, Any]:
        messages = [message.plain() for message in asked.messages]
        if retried and held.repeats(messages) and held.answer is not None:
            return held.answer  # the client lost our answer: the turn was sampled, and is not sampled twice
        started = time.monotonic()
        tools = [] if asked.tool_choice == "none" else asked.tools
        prompt = held.context(messages, tools, self._chat)
        try:
            completion = await self._sample(held, asked, prompt)
        except WireError as error:
            await self._record(held, "turn", status=error.code, latency=time.monotonic() - started)
            raise
        text = self._chat.decode(completion.token_ids)
        message = assistant_message(text, held.turn, cut=completion.finish_reason == "length")
        answer = completion_body(held.session, held.turn, held.route.served.release, message, completion)
        await self._record(held, "turn", **_measured(completion, message), latency=time.monotonic() - started)
        held.commit(Exchange(messages, tools, prompt, completion, message, answer), self._chat)
        return answer

    async def _sample(self, held: Conversation, asked: ChatRequest, prompt: list[int]) -> Completion:
        room = self.config.max_context - len(prompt)
        if room < 1:
            raise WireError(
                400,
                "context_length_exceeded",
                f"the prompt has {len(prompt)} tokens: at most {self.config.max_context - 1}",
            )
        sample = SampleRequest(
            session=held.session,
            policy_version=held.route.served.release,
            token_ids=prompt,
            max_tokens=min(asked.limit or self.config.max_tokens, room),
            temperature=asked.temperature,
            top_p=asked.top_p,
            seed=_seed(held.session) if asked.seed is None else asked.seed,
            stop_ids=self._chat.stop_ids,
        )
        completion = await self._sampled(sample)
        if completion.policy_digest != held.route.served.digest:
            raise WireError(500, "wrong_weights", f"{held.route.served.release} was not served by the weights it pins")
        return completion

    async def _sampled(self, sample: SampleRequest) -> Completion:
        """The engine's answer; its failures as HTTP errors."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._pump.sample(sample)), self.config.request_seconds)
        except TimeoutError as error:
            self._pump.close_session(sample.session)
            raise WireError(504, "timeout", f"no completion within {self.config.request_seconds:g} s") from error
        except ContextFull as error:
            raise WireError(400, "context_length_exceeded", str(error)) from error
        except EngineError as error:
            _LOG.error("session %s: %s", sample.session, error)
            status = 500 if self._pump.alive else 503
            raise WireError(status, "engine_error", str(error)) from error

    async def _feedback(self, request: Request) -> Response:
        told: Feedback = parse_body(Feedback, await self._body(request))
        held = self._memory.find(told.session)
        if held is None:
            raise WireError(404, "unknown_session", f"no session {told.session!r} is remembered")
        async with held.lock:
            await self._record(held, "outcome", outcome=told.outcome, metadata=told.metadata)
            self._memory.drop(told.session)
        return JSONResponse({"status": "ok"}, headers=_headers(held))

    async def _record(self, held: Conversation, kind: str, **fields: Any) -> None:
        served = held.route.served
        row = AuditRow.model_validate(
            {
                "kind": kind,
                "session": held.session,
                "release": served.release,
                "arm": held.route.arm,
                "stage": held.route.stage,
                "digest": served.digest,
                "turn": held.turn,
            }
            | fields
        )
        await asyncio.to_thread(self._audit.append, row)

    async def _body(self, request: Request) -> bytes:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.config.max_request_bytes:
                raise WireError(
                    413, "request_too_large", f"a request has at most {self.config.max_request_bytes} bytes"
                )
        return body


async def _refused(_: Request, error: Exception) -> Response:
    """An unknown path or method, in OpenAI's form."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    return JSONResponse(WireError(status, "not_found", "see /v1/models, /v1/chat/completions, /health").body(), status)


async def _broken(_: Request, error: Exception) -> Response:
    """A fault of ours, in OpenAI's form; uvicorn logs the trace."""
    return JSONResponse(WireError(500, "internal_error", f"the gateway failed: {type(error).__name__}").body(), 500)


def _session(request: Request) -> str:
    session = request.headers.get("x-session-id") or uuid.uuid4().hex
    if len(session) > _LONGEST_ID:
        raise WireError(400, "invalid_value", f"x-session-id has at most {_LONGEST_ID} characters")
    return session


def _headers(held: Conversation) -> Mapping[str, str]:
    route = held.route
    return {
        "x-session-id": held.session,
        "x-ratchet-release": route.served.release,
        "x-ratchet-digest": route.served.digest,
        "x-ratchet-arm": route.arm,
        "x-ratchet-stage": str(route.stage),
    }


def _measured(completion: Completion, message: Message) -> dict[str, Any]:
    return {
        "digest": completion.policy_digest,
        "prompt_tokens": completion.prompt_tokens,
        "cached_tokens": completion.cached_tokens,
        "completion_tokens": len(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "tool_calls": tuple(call["function"]["name"] for call in message.get("tool_calls", [])),
        "call_errors": len(message.get("call_errors", [])),
    }


def _seed(session: str) -> int:
    """A seed of the session's own, when the client names none."""
    return int.from_bytes(hashlib.sha256(b"seed:" + session.encode()).digest()[:4])
