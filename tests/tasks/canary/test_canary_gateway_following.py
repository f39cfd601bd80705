"""The gateway and the registry: it serves what the registry says, without a restart and across one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.registry import Registry
from models.release import Bundle
from models.trial import Trial
from tasks.canary.audit import read_audit
from tasks.canary.gateway import Gateway
from tasks.canary.gateway.following import Follower
from tasks.canary.gateway.resuming import open_sessions

Open = Callable[..., Gateway]
Scripted = Callable[..., Any]
HTTP = httpx.Client(timeout=60, trust_env=False)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "mlartifacts", "agent")


def publish(registry: Registry, folder: Path, number: int) -> int:
    """A release whose policy has the digest that the scripted engine gives for it."""
    for part in ("base", f"policy-{number}"):
        (folder / part).mkdir(exist_ok=True)
        (folder / part / "weights").write_text(part)
    policy = folder / f"policy-{number}"
    return registry.publish(
        Bundle(
            run_id="run", base_path=folder / "base", base_digest="base", policy_path=policy,
            policy_version="policy-00001", policy_digest=f"digest-{number}",
        )
    )  # fmt: skip


def trial(share: float, shadow: bool = False, stage: int = 0) -> Trial:
    now = datetime.now(UTC).isoformat()
    return Trial(id="c", champion=1, candidate=2, share=share, shadow=shadow, stage=stage, since=now)


def ask(gateway: Gateway, session: str) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 64}
    return HTTP.post(f"{gateway.url}/v1/chat/completions", json=body, headers={"x-session-id": session})


def until(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen within a minute"
        time.sleep(0.01)
    return found


def release_of(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    return reply.headers["x-ratchet-release"]


def test_a_day_of_a_gateway(open_gateway: Open, scripted: Scripted, registry: Registry, tmp_path: Path) -> None:
    """No champion, a champion, a shadow, a share, a promotion, the old one dropped, a rollback, a restart."""
    engine = scripted(lambda version, session, turn: f"{version} turn {turn}")
    for number in (1, 2):
        publish(registry, tmp_path, number)
    audit = tmp_path / "audit"
    gateway = open_gateway(engine, None, poll_seconds=0.02)
    health = f"{gateway.url}/health"
    assert HTTP.get(health).status_code == 503 and "no champion" in HTTP.get(health).json()["status"]
    refused = ask(gateway, "early")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_champion")
    with Follower(gateway, registry.serving, registry.release, audit):
        registry.promote(1, who="t", why="first")
        until(lambda: HTTP.get(health).status_code == 200)
        assert release_of(ask(gateway, "old")) == "release-1"

        registry.set_trial(trial(0.0, shadow=True), who="t", why="shadow")
        until(lambda: gateway.routes.state.shadow)
        assert release_of(ask(gateway, "old")) == "release-1"
        until(lambda: read_audit(audit)["shadow"].any())
        copy = read_audit(audit).query("shadow").iloc[0]
        assert (copy["release"], copy["arm"], copy["turn"], copy["status"]) == ("release-2", "candidate", 1, "ok")
        assert '"release-2 turn' in copy["completion"] and engine.contexts[-1] == engine.contexts[-2]

        registry.set_trial(trial(1.0, stage=2), who="t", why="all")
        until(lambda: gateway.routes.share == 1.0)
        assert release_of(ask(gateway, "new")) == "release-2" and release_of(ask(gateway, "old")) == "release-1"
        assert HTTP.get(health).json()["candidate"] == {
            "release": "release-2", "share": 1.0, "shadow": False, "stage": 2
        }  # fmt: skip

        registry.promote(2, who="t", why="better")
        until(lambda: gateway.routes.champion.release == "release-2" and gateway.routes.candidate is None)
        assert release_of(ask(gateway, "old")) == "release-1", "a session that has begun ends where it began"
        assert engine.dropped == []
        HTTP.post(f"{gateway.url}/feedback", json={"session": "old", "outcome": True})
        until(lambda: engine.dropped == ["release-1"])

        registry.set_trial(None, who="t", why="promoted")
        registry.rollback(why="worse")
        until(lambda: gateway.routes.champion.release == "release-1")
        assert release_of(ask(gateway, "after")) == "release-1"

    again = open_gateway(engine, None, poll_seconds=0.02)
    with Follower(again, registry.serving, registry.release, audit):
        until(lambda: HTTP.get(f"{again.url}/health").status_code == 200)
        assert release_of(ask(again, "new")) == "release-2", "across a restart a session keeps its release"
        assert release_of(ask(again, "old")) == "release-1", "one that has ended begins anew"
        assert list(read_audit(audit).query("session == 'new'")["turn"]) == [0, 1]


def test_a_registry_that_cannot_be_read_keeps_what_is_served_and_says_so(
    open_gateway: Open, scripted: Scripted, registry: Registry, tmp_path: Path
) -> None:
    publish(registry, tmp_path, 1)
    registry.promote(1, who="t", why="first")
    broken: list[int] = []

    def read() -> Any:
        if broken:
            raise OSError("the database is away")
        return registry.serving()

    gateway = open_gateway(scripted(lambda version, session, turn: "x"), None, poll_seconds=0.02)
    with Follower(gateway, read, registry.release, tmp_path / "audit"):
        until(lambda: HTTP.get(f"{gateway.url}/health").status_code == 200)
        broken.append(1)
        until(lambda: "the database is away" in HTTP.get(f"{gateway.url}/health").json().get("trouble", ""))
        assert release_of(ask(gateway, "s")) == "release-1"
        assert gateway.metrics.registry.get_sample_value("ratchet_gateway_registry_errors_total") >= 1
        broken.clear()
        until(lambda: "trouble" not in HTTP.get(f"{gateway.url}/health").json())


def test_a_candidate_that_is_not_what_it_pins_gets_no_session(
    open_gateway: Open, scripted: Scripted, registry: Registry, tmp_path: Path
) -> None:
    engine = scripted(lambda version, session, turn: "x")
    for number in (1, 2):
        publish(registry, tmp_path, number)
    registry.promote(1, who="t", why="first")
    engine.digests["release-2"] = "other"
    registry.set_trial(trial(1.0), who="t", why="all")
    gateway = open_gateway(engine, None, poll_seconds=0.02)
    with Follower(gateway, registry.serving, registry.release, tmp_path / "audit"):
        until(lambda: "release-2 pins weights" in HTTP.get(f"{gateway.url}/health").json().get("trouble", ""))
        assert release_of(ask(gateway, "s")) == "release-1"


def test_a_shadow_that_is_too_slow_is_dropped_and_counted(
    open_gateway: Open, scripted: Scripted, registry: Registry, tmp_path: Path
) -> None:
    engine = scripted(lambda version, session, turn: "x")
    for number in (1, 2):
        publish(registry, tmp_path, number)
    registry.promote(1, who="t", why="first")
    registry.set_trial(trial(0.0, shadow=True), who="t", why="shadow")
    gateway = open_gateway(engine, None, shadow_in_flight=1, shadow_queue=1)
    gateway.follow(registry.serving())
    sampled = gateway._shadow._turns.sampled

    async def slow(sample: Any, digest: str, hear: Any = None) -> Any:
        if sample.policy_version == "release-2":
            await asyncio.sleep(30)
        return await sampled(sample, digest, hear)

    gateway._shadow._turns.sampled = slow  # type: ignore[method-assign]
    for number in range(5):
        assert release_of(ask(gateway, f"s{number}")) == "release-1"
    dropped = {"result": "dropped"}
    until(lambda: gateway.metrics.registry.get_sample_value("ratchet_gateway_shadow_total", dropped) == 3)


def test_idle_sessions_end(open_gateway: Open, scripted: Scripted, tmp_path: Path) -> None:
    gateway = open_gateway(scripted(lambda version, session, turn: "x"), session_seconds=0.05)
    ask(gateway, "s")
    time.sleep(0.1)
    gateway.tidy()
    assert HTTP.get(f"{gateway.url}/health").json()["sessions"] == 0
    assert open_sessions(tmp_path / "audit", 3600, 10)[0].turn == 1
    assert open_sessions(tmp_path / "audit", 0.01, 10) == []
