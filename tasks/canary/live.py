"""Live sessions: problems solved through the gateway, over HTTP, as a user's agent would.

problem -> environment session <-> POST /v1/chat/completions -> hidden checks -> POST /feedback -> LiveSession
"""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple, Self

import httpx

from data_contracts.records import INFRASTRUCTURE, Problem, Status, ToolCall
from tasks.canary.config import CanaryConfig
from tasks.canary.sessions import LiveSession
from tasks.rollout.agent import CUT
from tasks.rollout.environments import Session, VerifierError, checked, environment_of, open_session
from tasks.rollout.environments.base import Listener
from tasks.rollout.sandbox import SandboxError, WarmPool
from tasks.rollout.toolformats import FORMATS, ToolFormat

Message = dict[str, Any]
_VERIFIER_TRIES = 3


class Unserved(Exception):
    """The gateway did not answer a turn, however often it was asked; `status` says whose failure that is."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class ContextExceeded(Exception):
    """The conversation fills the context."""


class Client:
    """The gateway's client; sends again what was lost. Any thread may use it, each has a connection of its own.

    (One pool for all threads would look through all its connections at every request, for as long as the model takes.)
    """

    def __init__(self, url: str, config: CanaryConfig) -> None:
        self._retries = config.retries
        tls = ssl.create_default_context()
        timeout = config.gateway.request_seconds + 10.0
        self._open = lambda: httpx.Client(base_url=url, timeout=timeout, verify=tls, trust_env=False)
        self._own = threading.local()
        self._opened: list[httpx.Client] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._opened:
            client.close()

    @property
    def _http(self) -> httpx.Client:
        if not hasattr(self._own, "client"):
            self._own.client = self._open()
            self._opened.append(self._own.client)
        client: httpx.Client = self._own.client
        return client

    def chat(self, session: str, body: dict[str, Any], route: dict[str, str]) -> dict[str, Any]:
        """A turn's response; notes the session's route in `route`. Raises `Unserved`, `ContextExceeded`.

        Any other 4xx is a fault of ours and raises `httpx.HTTPStatusError`.
        """
        reply = self._post("/v1/chat/completions", session, body, route)
        answer: dict[str, Any] = reply.json()
        if reply.status_code == 400 and answer["error"]["code"] == "context_length_exceeded":
            raise ContextExceeded(answer["error"]["message"])
        reply.raise_for_status()
        return answer

    def tell(self, session: str, outcome: bool | None, metadata: dict[str, Any]) -> None:
        """Post a session's outcome; one that the gateway no longer knows (404) was told before. Raises `Unserved`."""
        body = {"session": session, "outcome": outcome, "metadata": metadata}
        reply = self._post("/feedback", session, body, {})
        if reply.status_code != 404:
            reply.raise_for_status()

    def _post(self, path: str, session: str, body: dict[str, Any], route: dict[str, str]) -> httpx.Response:
        """Send a request until it has an answer below 500.

        A gateway that cannot be reached, or whose engine as a whole is gone (503), is no release's failure.
        """
        for attempt in range(self._retries + 1):
            headers = {"x-session-id": session, "x-stainless-retry-count": str(attempt)}
            try:
                reply = self._http.post(path, json=body, headers=headers)
            except httpx.TransportError as error:
                failure = Unserved("cancelled", f"the gateway was not reached: {error!r}")
            else:
                route.update({key: reply.headers[key] for key in reply.headers if key.startswith("x-ratchet-")})
                if reply.status_code < 500:
                    return reply
                failure = Unserved("cancelled" if reply.status_code == 503 else "engine_error", reply.text[:200])
            if attempt < self._retries:
                time.sleep(0.05 * 2**attempt)
        raise failure


class Job(NamedTuple):
    """A problem to solve, and the id of the session to solve it in."""

    problem: Problem
    session: str


class Desk(NamedTuple):
    """What live sessions share: the client, the agent's sandboxes, the verifier's own, the settings, how calls look."""

    client: Client
    sandboxes: WarmPool
    verifier: WarmPool
    config: CanaryConfig
    tool_format: ToolFormat = FORMATS["hermes"]


def play_all(
    jobs: Sequence[Job], desk: Desk, on_done: Callable[[LiveSession], None] | None = None
) -> list[LiveSession]:
    """Play the sessions, `concurrency` at a time; records come in the order of the jobs, `on_done` hears of each."""
    with ThreadPoolExecutor(desk.config.concurrency, thread_name_prefix="live") as threads:
        futures = [threads.submit(play, job, desk) for job in jobs]
        for future in as_completed(futures):
            if on_done:
                on_done(future.result())
    return [future.result() for future in futures]


def play(job: Job, desk: Desk) -> LiveSession:
    """One session, start to verified outcome; whatever happens has a typed ending."""
    player = _Player(job, desk)
    status, detail = player.run()
    outcome: bool | None = None
    if status not in INFRASTRUCTURE:
        try:
            outcome = _verified(job.problem, player.session, desk.verifier)
        except (SandboxError, VerifierError) as error:
            status, detail = "verifier_error", str(error)
    if status != "cancelled":
        detail = player.tell(status, outcome) or detail
    return player.record(status, detail, outcome)


class _Player:
    """The client's side of one session."""

    def __init__(self, job: Job, desk: Desk) -> None:
        self.problem, self.name, self.desk = job.problem, job.session, desk
        self.session = open_session(job.problem, desk.sandboxes)
        self.messages = self.session.messages()
        self.route: dict[str, str] = {}
        self.turns = self.tokens = self.tool_errors = self.prompt_tokens = 0
        self.latency = 0.0

    def run(self) -> tuple[Status, str]:
        """Turn after turn until an ending."""
        limits = self.problem.limits
        try:
            while self.turns < limits.turns:
                if self.tokens >= limits.tokens:
                    return "out_of_tokens", ""
                message, cut = self._ask(limits.tokens - self.tokens)
                if self._answer(message, cut):
                    return "completed", ""
                if cut and self.tokens >= limits.tokens:
                    return "out_of_tokens", ""
        except ContextExceeded:
            return "out_of_tokens", "the context is full"
        except Unserved as error:
            return error.status, str(error)
        except SandboxError as error:
            return "sandbox_error", str(error)
        except OSError as error:
            return "tool_error", f"{type(error).__name__}: {error}"
        return "out_of_turns", ""

    def _ask(self, left: int) -> tuple[Message, bool]:
        """The next message of the model, and whether it was cut by length."""
        config = self.desk.config
        body = {
            "model": config.gateway.model,
            "messages": self.messages,
            "tools": self.session.tools(),
            "temperature": config.temperature,
            "max_tokens": min(config.turn_tokens, left),
            "seed": _seed(config.seed, self.name),
        }
        started = time.monotonic()
        reply = self.desk.client.chat(self.name, body, self.route)
        self.latency += time.monotonic() - started
        self.prompt_tokens = self.prompt_tokens or reply["usage"]["prompt_tokens"]
        self.tokens += reply["usage"]["completion_tokens"]
        self.turns += 1
        choice = reply["choices"][0]
        self.messages.append(choice["message"])
        return choice["message"], choice["finish_reason"] == "length"

    def _answer(self, message: Message, cut: bool) -> bool:
        """Run the calls and append what came back, in the words of training; True when the session is over."""
        asked = [] if cut else message.get("tool_calls", [])
        calls = [ToolCall(name=c["function"]["name"], arguments=json.loads(c["function"]["arguments"])) for c in asked]
        errors = [CUT] if cut else [f"error: {error}" for error in message.get("call_errors", [])]
        if (calls or not errors) and isinstance(self.session, Listener):
            if self.session.hear(message.get("content") or "", calls):
                return True
        elif not calls and not errors:
            errors = [self.desk.tool_format.no_call]
        self.tool_errors += len(errors)
        for call, given in zip(calls, asked, strict=True):
            result = self.session.call(call)
            self.tool_errors += result.failed
            if result.done:
                return True
            self._observe(result.text, given["id"])
        for error in errors:
            self._observe(error, "")
        return False

    def _observe(self, text: str, call: str) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call, "content": text})

    def tell(self, status: Status, outcome: bool | None) -> str:
        """Tell the gateway how it ended; returns why that failed, or ""."""
        metadata = {
            "problem_id": self.problem.id,
            "horizon": self.problem.horizon,
            "status": status,
            "tool_errors": self.tool_errors,
        }
        try:
            self.desk.client.tell(self.name, outcome, metadata)
        except Unserved as error:
            return f"the outcome was not told: {error}"
        return ""

    def record(self, status: Status, detail: str, outcome: bool | None) -> LiveSession:
        return LiveSession(
            session=self.name,
            stage=int(self.route.get("x-ratchet-stage", 0)),
            arm="candidate" if self.route.get("x-ratchet-arm") == "candidate" else "champion",
            release=self.route.get("x-ratchet-release", ""),
            digest=self.route.get("x-ratchet-digest", ""),
            problem_id=self.problem.id,
            horizon=self.problem.horizon,
            status=status,
            outcome=outcome,
            turns=self.turns,
            prompt_tokens=self.prompt_tokens,
            tokens=self.tokens,
            latency=self.latency,
            tool_errors=self.tool_errors,
            detail=detail,
        )


def _verified(problem: Problem, session: Session, verifier: WarmPool) -> bool:
    """Whether the session's work passes all hidden checks; raises SandboxError and VerifierError."""
    environment = environment_of(problem)
    for attempt in range(_VERIFIER_TRIES):
        try:
            found = checked(environment.verify(problem, session.files, verifier))
            return found.passed == found.total
        except SandboxError:
            if attempt == _VERIFIER_TRIES - 1:
                raise
    raise AssertionError("_VERIFIER_TRIES is at least 1")


def _seed(seed: int, session: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{session}".encode()).digest()[:4])
