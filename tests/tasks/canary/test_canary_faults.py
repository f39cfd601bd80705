"""Broken candidates for real: rolled back on their own through the running gateway, under load, and nobody notices.

The starter model is the champion; load is played sessions on repair problems, over HTTP, without a single retry.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from data_contracts.records import Problem
from models.chat import Chat
from models.fingerprint import digest_folder
from models.policy import Base, LoraSpec, init_adapter, load_base
from models.registry import Registry
from models.release import Bundle
from tasks.canary.audit import AuditLog
from tasks.canary.config import CanaryConfig
from tasks.canary.gateway import Gateway
from tasks.canary.gateway.following import Follower
from tasks.canary.live import Client, Desk, Job, play
from tasks.canary.sessions import LiveSession
from tasks.canary.standing import Seat, begin, look
from tasks.canary.standing_status import StandingStatus
from tasks.curriculum.generator.problems import generate
from tasks.paths import ServiceFolder
from tasks.rollout.engine import Completion, SampleRequest
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.slot_engine import SlotEngine

pytestmark = pytest.mark.slow
STARTER = Path("models/starter")
CHAMPION, CORRUPTED, SLOW, MALFORMED = 1, 2, 3, 4
CONFIG = CanaryConfig.model_validate(
    {
        "traffic": "live",
        "stages": [{"share": 0.5, "sessions": 200}, {"share": 1.0}],
        "look_seconds": 0.5,
        "concurrency": 6,
        "retries": 0,
        "idle_seconds": 120.0,
    }
)


class Faulty:
    """An engine with two faults, each of one release: it is three times slower, or its calls are broken off."""

    def __init__(self, engine: SlotEngine, chat: Chat) -> None:
        self._engine, self._chat = engine, chat
        self._asked: dict[str, tuple[str, float]] = {}
        self._late: list[tuple[float, str, Completion]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: SampleRequest) -> None:
        self._asked[request.session] = request.policy_version, time.monotonic()
        self._engine.submit(request)

    def poll(self) -> list[tuple[str, Completion]]:
        ended, now = [], time.monotonic()
        for session, completion in self._engine.poll():
            version, since = self._asked.pop(session)
            if version == f"release-{SLOW}":
                self._late.append((since + 3 * (now - since), session, completion))
            else:
                ended.append(
                    (session, self._broken_off(completion) if version == f"release-{MALFORMED}" else completion)
                )
        ended += [(session, completion) for due, session, completion in self._late if due <= now]
        self._late = [late for late in self._late if late[0] > now]
        if not ended:
            time.sleep(0.001)
        return ended

    def _broken_off(self, completion: Completion) -> Completion:
        ids = [*completion.token_ids[: max(1, len(completion.token_ids) // 2)], min(self._chat.stop_ids)]
        return replace(completion, token_ids=ids, logprobs=completion.logprobs[: len(ids)])


class Load:
    """Users: threads that play one session after another, from `with` to its end."""

    def __init__(self, url: str, problems: list[Problem], pools: tuple[WarmPool, WarmPool]) -> None:
        self.sessions: list[LiveSession] = []
        self._client = Client(url, CONFIG)
        self._desk = Desk(self._client, pools[0], pools[1], CONFIG)
        self._problems, self.begun = itertools.cycle(problems), 0
        self._next, self._stop = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._play) for _ in range(CONFIG.concurrency)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._client.__exit__()

    def _play(self) -> None:
        while not self._stop.is_set():
            with self._next:
                job, self.begun = Job(next(self._problems), f"user-{self.begun}"), self.begun + 1
            self.sessions.append(play(job, self._desk))


@pytest.fixture(scope="module")
def base() -> Base:
    return load_base(str(STARTER))


@pytest.fixture(scope="module")
def seat(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Seat:
    """A registry of four releases over the starter: the champion, one of noise, and two that the engine spoils."""
    home = tmp_path_factory.mktemp("home")
    registry = Registry(f"sqlite:///{home}/mlflow.db", home / "mlartifacts", "agent", home=home)
    for version in (CHAMPION, CORRUPTED, SLOW, MALFORMED):
        policy = init_adapter(base, LoraSpec(r=2, alpha=4), home / "policies" / str(version), seed=version)
        if version == CORRUPTED:
            _corrupt(policy)
        bundle = Bundle(
            run_id=f"run-{version}",
            base_path=STARTER.resolve(),
            base_digest=base.digest,
            policy_path=policy,
            policy_version="policy-00001",
            policy_digest=digest_folder(policy),
            datasets={},
            contract_versions={},
            recipe={},
            code_revision="c",
        )
        assert registry.publish(bundle) == version
    registry.promote(CHAMPION, who="test", why="first")
    return Seat(registry, ServiceFolder(home, "agent"), "canary")


def _corrupt(policy: Path) -> None:
    """As a torn download would: every weight is noise."""
    import torch

    [file] = policy.glob("*.safetensors")
    weights = load_file(file)
    torch.manual_seed(0)
    save_file({name: torch.randn_like(tensor) for name, tensor in weights.items()}, file)


@pytest.fixture(scope="module")
def gateway(base: Base, seat: Seat) -> Iterator[Gateway]:
    chat = Chat(base.tokenizer)
    registry, folder = seat.registry, seat.folder.audit
    engine = Faulty(SlotEngine.from_base(base, slots=32), chat)
    with (
        AuditLog(folder) as audit,
        Gateway(engine, chat, None, audit, CONFIG.gateway, slots=32) as gateway,
        Follower(gateway, registry.serving, registry.release, folder),
    ):
        while gateway.routes.state.champion is None:
            time.sleep(0.05)
        yield gateway


@pytest.fixture(scope="module")
def load(gateway: Gateway) -> Iterator[Load]:
    """The load goes on from the first candidate to the last."""
    problems = generate(3, "heldout", "short", 60)
    with (
        closing(WarmPool(2, "agent")) as agent,
        closing(WarmPool(2, "verifier")) as verifier,
        Load(gateway.url, problems, (agent, verifier)) as load,
    ):
        yield load


@pytest.mark.parametrize(
    ("candidate", "fault", "blamed"),
    [
        (CORRUPTED, "corrupted weights", {"success", "tool_errors"}),
        (SLOW, "three times slower", {"latency", "latency_p95"}),
        (MALFORMED, "broken tool calls", {"success", "tool_errors"}),
    ],
)
def test_a_broken_candidate_is_rolled_back_under_load_and_no_client_sees_an_error(
    seat: Seat, gateway: Gateway, load: Load, candidate: int, fault: str, blamed: set[str]
) -> None:
    first, started = len(load.sessions), time.monotonic()
    status = _watched(seat, begin(seat, candidate, CONFIG))
    seconds, exposed = time.monotonic() - started, status.sessions["candidate"]
    print(f"\n{fault}: rolled back after {seconds:.1f} s and {exposed} of its sessions: {status.why}")
    assert status.ending == "rolled_back" and status.why.split()[0] in blamed
    while gateway.routes.candidate is not None:
        time.sleep(0.05)
    after = load.begun
    while len(late := [s for s in load.sessions if int(s.session.removeprefix("user-")) >= after]) < 12:
        time.sleep(0.05)
    assert {session.release for session in late} == {f"release-{CHAMPION}"}, "new sessions are the champion's again"
    played = load.sessions[first:]
    assert {session.status for session in played}.isdisjoint({"engine_error", "cancelled"})
    assert any(session.arm == "candidate" for session in played), "it was given real sessions"


def _watched(seat: Seat, status: StandingStatus) -> StandingStatus:
    deadline = time.monotonic() + 500
    while status.ending is None and time.monotonic() < deadline:
        time.sleep(CONFIG.look_seconds)
        status = look(seat, status, CONFIG)
    return status
