"""Live sessions: problems solved through the gateway, over HTTP, as a user's agent would.

problem -> environment session <-> POST /v1/chat/completions, turn by turn -> hidden checks -> POST /feedback -> LiveSession
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import httpx

from data_contracts.records import INFRASTRUCTURE, Problem, Status, ToolCall
from tasks.canary.config import CanaryConfig
from tasks.canary.sessions import LiveSession
from tasks.rollout.checks import run_checks
from tasks.rollout.environments import open_session
from tasks.rollout.environments.base import Session
from tasks.rollout.sandbox import SandboxError, WarmPool

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
    """The gateway's client: keeps connections, sends again what was lost. Any thread may use it."""

    def __init__(self, url: str, config: CanaryConfig) -> None:
        self._retries = config.retries
        self._http = httpx.Client(
            base_url=url,
            timeout=config.gateway.request_seconds + 10.0,
            limits=httpx.Limits(max_connections=config.concurrency, max_keepalive_connections=config.concurrency),
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def post(self, path: str, session: str, body: dict[str, Any], route: dict[str, str]) -> dict[str, Any]:
        """Send a request and notice its route in `route`; raises `Unserved`, `ContextExceeded`.

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
                    return _accepted(reply)
                failure = Unserved("cancelled" if reply.status_code == 503 else "engine_error", reply.text[:200])
            if attempt < self._retries:
                time.sleep(0.05 * 2**attempt)
        raise failure


class Job(NamedTuple):
    """A problem to solve, and the id of the session to solve it in."""

    problem: Problem
    session: str


class Desk(NamedTuple):
    """What live sessions share: the client, the agent's sandboxes, the verifier's own, the settings."""

    client: Client
    sandboxes: WarmPool
    verifier: WarmPool
    config: CanaryConfig


def play_all(
    jobs: Sequence[Job], desk: Desk, on_done: Callable[[LiveSession], None] | None = None
) -> list[LiveSession]:
    """Play the sessions, `concurrency` at a time; the records come in the order of the jobs, `on_done` hears of each."""
    done: list[LiveSession] = []
    with ThreadPoolExecutor(desk.config.concurrency, thread_name_prefix="live") as threads:
        for record in threads.map(lambda job: play(job, desk), jobs):
            done.append(record)
            if on_done:
                on_done(record)
    return done


def play(job: Job, desk: Desk) -> LiveSession:
    """One session, start to verified outcome; whatever happens has a typed ending."""
    player = _Player(job, desk)
    status, detail = player.run()
    outcome: bool | None = None
    if status not in INFRASTRUCTURE:
        try:
            outcome = _verified(job.problem, player.session, desk.verifier)
        except SandboxError as error:
            status, detail = "verifier_error", str(error)
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
                message = self._ask(limits.tokens - self.tokens)
                if self._answer(message):
                    return "completed", ""
        except ContextExceeded:
            return "out_of_tokens", "the context is full"
        except Unserved as error:
            return error.status, str(error)
        except SandboxError as error:
            return "sandbox_error", str(error)
        return "out_of_turns", ""

    def _ask(self, left: int) -> Message:
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
        reply = self.desk.client.post("/v1/chat/completions", self.name, body, self.route)
        self.latency += time.monotonic() - started
        self.prompt_tokens = self.prompt_tokens or reply["usage"]["prompt_tokens"]
        self.tokens += reply["usage"]["completion_tokens"]
        self.turns += 1
        message: Message = reply["choices"][0]["message"]
        self.messages.append(message)
        return message

    def _answer(self, message: Message) -> bool:
        """Run the calls and append what they came back with; True when the session is over."""
        for call in message.get("tool_calls", []):
            arguments = json.loads(call["function"]["arguments"])
            result = self.session.call(ToolCall(name=call["function"]["name"], arguments=arguments))
            self.tool_errors += result.failed
            if result.done:
                return True
            self._observe(result.text, call["id"])
        for error in message.get("call_errors", []):
            self.tool_errors += 1
            self._observe(f"error: {error}", "")
        return self.messages[-1] is message

    def _observe(self, text: str, call: str) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call, "content": text})

    def record(self, status: Status, detail: str, outcome: bool | None) -> LiveSession:
        """The session's record, after its outcome was told to the gateway."""
        told = {"problem_id": self.problem.id, "horizon": self.problem.horizon, "status": status, "turns": self.turns}
        feedback = {"session": self.name, "outcome": outcome, "metadata": told}
        if self.route and status != "cancelled":
            self.desk.client.post("/feedback", self.name, feedback, self.route)
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


def _accepted(reply: httpx.Response) -> dict[str, Any]:
    """The body of a request that was understood; any 4xx but a full context is a fault of ours and raises."""
    body: dict[str, Any] = reply.json()
    if reply.status_code == 400 and body["error"]["code"] == "context_length_exceeded":
        raise ContextExceeded(body["error"]["message"])
    reply.raise_for_status()
    return body


def _verified(problem: Problem, session: Session, verifier: WarmPool) -> bool:
    """The hidden checks on the problem's own files, as the session left them; raises SandboxError."""
    files = {path: session.files.get(path, original) for path, original in problem.files.items()}
    for _ in range(_VERIFIER_TRIES - 1):
        try:
            return run_checks(files, problem.hidden, problem.limits, verifier).passed == len(problem.hidden)
        except SandboxError:
            continue
    return run_checks(files, problem.hidden, problem.limits, verifier).passed == len(problem.hidden)


def _seed(seed: int, session: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{session}".encode()).digest()[:4])
