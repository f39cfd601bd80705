"""An episode of drift on a real Prefect server: told once whatever is killed, and one run of post_train for it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from data_contracts.store import read_jsonl
from flows.deployments import deployed, served
from flows.drift_event import EVENT, PrefectServer
from flows.recipe import Recipe
from flows.services import prefect_plan
from tasks.drift import telling
from tasks.drift.episodes import Episode
from tasks.drift.folder import DriftFolder
from tasks.drift.telling import tell
from tasks.keeper import Keeper
from tasks.supervision import free_port

Killed = Callable[[Callable[[], None]], None]
AGENT = Recipe().release.name


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("home")
    with Keeper(print) as keeper:
        url = f"{keeper.keep(prefect_plan(home, free_port(), {})).plan.url}/api"
        assert keeper.wait_up(threading.Event())
        with temporary_settings({PREFECT_API_URL: url}):
            yield url


def episode(name: str) -> Episode:
    opened = datetime.now(UTC)
    return Episode(id=name, release=3, windows=("00000", "00001"), checks=("success",), opened=opened)


def stored(api: str, event: str) -> list[dict[str, Any]]:
    body = {"filter": {"event": {"name": [event]}}, "limit": 50}
    found: list[dict[str, Any]] = httpx.post(f"{api}/events/filter", json=body).raise_for_status().json()["events"]
    return found


POINTS = ("before intent", "after intent", "after sending", "before done", "after done")


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point_leaves_one_event_an_episode(api: str, tmp_path: Path, point: str, killed: Killed) -> None:
    told, folder = episode(f"release-3-{point.replace(' ', '-')}"), DriftFolder(tmp_path)
    killed(lambda: _tell_and_die(folder, told, point))
    fresh = tell(folder, told, PrefectServer(AGENT, folder))
    assert fresh == (point in ("before intent", "after intent"))
    assert not tell(folder, told, PrefectServer(AGENT, folder))
    [event] = [event for event in stored(api, EVENT) if event["payload"]["episode"] == told.id]
    assert (event["id"], event["payload"]["checks"]) == (str(told.event), ["success"])
    assert event["payload"]["candidates"] == str(folder.candidates(told.id))
    assert read_jsonl(folder.told).rows[-1] == {"episode": told.id, "state": "done"}


def _tell_and_die(folder: DriftFolder, told: Episode, point: str) -> None:
    server, note = PrefectServer(AGENT, folder), telling._note

    def at(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    class Sending:
        def knows(self, episode: Episode) -> bool:
            return server.knows(episode)

        def send(self, episode: Episode) -> None:
            server.send(episode)
            while point == "after sending" and not server.knows(episode):
                time.sleep(0.1)  # it is stored, and nobody here has noted it
            at("after sending")

    def noting(folder: DriftFolder, episode: Episode, state: str) -> None:
        at(f"before {state}")
        note(folder, episode, state)
        at(f"after {state}")

    telling._note = noting
    tell(folder, told, Sending())


def test_an_event_that_is_sent_twice_before_it_is_stored_counts_once(api: str, tmp_path: Path) -> None:
    told, server = episode("release-3-twice"), PrefectServer(AGENT, DriftFolder(tmp_path))
    for _ in range(3):
        server.send(told)
    tell(DriftFolder(tmp_path), told, server)
    assert len([event for event in stored(api, EVENT) if event["payload"]["episode"] == told.id]) == 1


def test_an_episode_starts_one_run_with_its_reason(api: str, tmp_path: Path) -> None:
    training = next(each for each in deployed(Recipe(), tmp_path) if each.name == "post_train")
    identity = served(training).apply()
    told, folder = episode("release-3-00007"), DriftFolder(tmp_path)
    for _ in range(4):  # its windows go on drifting, every check asks for it to be told
        tell(folder, told, PrefectServer(AGENT, folder))
    _wait(lambda: len(_runs(api, str(identity))) >= 1)
    time.sleep(5.0)
    [run] = _runs(api, str(identity))
    assert run["parameters"]["because"].startswith("release 3 drifted in success (2 windows)")
    assert str(folder.candidates(told.id)) in run["parameters"]["because"]
    assert run["parameters"]["recipe"]["policy"]["start"] == "champion"

    tell(folder, episode("release-3-00031"), PrefectServer(AGENT, folder))
    _wait(lambda: len(_runs(api, str(identity))) == 2)


def _runs(api: str, deployment: str) -> list[dict[str, Any]]:
    body = {"deployments": {"id": {"any_": [deployment]}}}
    found: list[dict[str, Any]] = httpx.post(f"{api}/flow_runs/filter", json=body).raise_for_status().json()
    return found


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120.0
    while not until():
        assert time.monotonic() < deadline, "the automation started nothing"
        time.sleep(0.5)
