"""A tiny tokenizer, the real engine over tiny random models, a scripted engine, and two problems."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from data_contracts.records import Check, Limits, Problem
from models.chat import Chat
from models.starter import StarterConfig, new_model, train_tokenizer
from tasks.canary.audit import AuditLog
from tasks.canary.gateway import Gateway
from tasks.canary.gateway_config import GatewayConfig
from tasks.canary.routing import Served
from tasks.rollout.engine import Completion, EngineError, SampleRequest
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.slot_engine import SlotEngine

CHAMPION = Served("release-1", "digest-1", None)
CANDIDATE = Served("release-2", "digest-2", Path("candidate"))


class ScriptedEngine:
    """An engine whose completions are written beforehand: `script(version, session, turn)` is a text or an error."""

    def __init__(self, chat: Chat, script: Callable[[str, str, int], str | Exception]) -> None:
        self.chat, self.script = chat, script
        self.held: dict[str, tuple[SampleRequest, Completion | EngineError]] = {}
        self.turns: dict[str, int] = {}
        self.digests = {s.release: s.digest for s in (CHAMPION, CANDIDATE)}
        self.silent = threading.Event()
        self.contexts: list[list[int]] = []
        self.dropped: list[str] = []

    def load_adapter(self, version: str, path: Path | None) -> str:
        return self.digests[version]

    def drop_adapter(self, version: str) -> None:
        self.dropped.append(version)

    def submit(self, request: SampleRequest) -> None:
        turn = self.turns.get(request.session, 0)
        said = self.script(request.policy_version, request.session, turn)
        if isinstance(said, EngineError):
            raise said
        if isinstance(said, Exception):
            raise RuntimeError("out of memory") from said
        self.turns[request.session] = turn + 1
        self.contexts.append(list(request.token_ids))
        ids = self.chat.completion(said)[: request.max_tokens]
        reason = "stop" if ids[-1] in request.stop_ids else "length"
        digest = self.digests[request.policy_version]
        logprobs = [-0.5] * len(ids)
        version, asked = request.policy_version, len(request.token_ids)
        self.held[request.session] = (request, Completion(ids, logprobs, reason, version, digest, asked, 0, 0.01))

    def poll(self) -> list[tuple[str, Completion]]:
        if self.silent.is_set():
            time.sleep(0.005)
            return []
        ended = [(session, completion) for session, (_, completion) in self.held.items()]
        self.held.clear()
        return ended

    def close_session(self, session: str) -> None:
        self.held.pop(session, None)

    def teacher_force(self, version: str, token_ids: Sequence[int]) -> list[float]:
        return [-0.5] * (len(token_ids) - 1)


@pytest.fixture(scope="session")
def chat() -> Chat:
    return Chat(train_tokenizer(["def add(a, b):\n    return a - b\nassert add(1, 2) == 3\n"] * 4, 400))


@pytest.fixture
def scripted(chat: Chat) -> Callable[[Callable[[str, str, int], str | Exception]], ScriptedEngine]:
    return lambda script: ScriptedEngine(chat, script)


@pytest.fixture
def candidate() -> Served:
    return CANDIDATE


@pytest.fixture(scope="session")
def slot_engine(chat: Chat) -> SlotEngine:
    """Champion and candidate are two random models that differ by their seed."""

    def model_of(adapter: Path | None) -> Any:
        sizes = {"hidden": 32, "layers": 2, "mlp": 64, "heads": 2, "kv_heads": 1, "seed": 0 if adapter is None else 1}
        return new_model(StarterConfig(**sizes), chat.tokenizer).eval()

    return SlotEngine(model_of, lambda adapter: "digest-1" if adapter is None else "digest-2", slots=64)


@pytest.fixture
def open_gateway(tmp_path: Path, chat: Chat) -> Iterator[Callable[..., Gateway]]:
    """Opens gateways over an engine and one audit log, and closes them at the end."""
    with AuditLog(tmp_path / "audit") as audit, ExitStack() as opened:

        def open_(engine: Any, champion: Served | None = CHAMPION, **settings: Any) -> Gateway:
            return opened.enter_context(Gateway(engine, chat, champion, audit, GatewayConfig(**settings)))

        yield open_


@pytest.fixture(scope="session")
def pools() -> Iterator[tuple[WarmPool, WarmPool]]:
    with WarmPool(2, "agent") as agent, WarmPool(2, "verifier") as verifier:
        yield agent, verifier


@pytest.fixture(scope="session")
def problems() -> list[Problem]:
    """One bug, in line 2: `-` for `+`."""
    return [
        Problem(
            id=f"add-{number}",
            prompt=f"Repair add in main.py. ({number})",
            files={"main.py": "def add(a, b):\n    return a - b\n"},
            visible=(Check(name="v", code="assert add(1, 2) == 3"),),
            hidden=(Check(name="h", code="assert add(2, 2) == 4"), Check(name="g", code="assert add(0, 5) == 5")),
            solution={"main.py": "def add(a, b):\n    return a + b\n"},
            limits=Limits(turns=5, tokens=400, seconds=20.0),
        )
        for number in range(200)
    ]
