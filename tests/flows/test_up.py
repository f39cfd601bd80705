"""`ratchet up` for real: each service is killed and comes back at its address; killed itself, it leaves nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.automations import PROMOTER, ZOMBIES

RECIPE = "infra/recipes/smoke.toml"
DEPLOYMENTS = {"canary_live", "drift", "post_train"}
pytestmark = pytest.mark.slow


class Up:
    """A `ratchet up` on any free ports, and what it has said."""

    def __init__(self, home: Path, mark: str) -> None:
        self.home, self.said = home, home.parent / f"said-{time.monotonic_ns()}.txt"
        ports = [word for name in ("prefect", "mlflow", "gateway") for word in (f"--{name}-port", "0")]
        with self.said.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flows.cli", "up", "--home", str(home), "--recipe", RECIPE, *ports],
                stdout=output, stderr=output, env={**os.environ, "RATCHET_TEST": mark},
            )  # fmt: skip

    def heard(self, words: str, times: int = 1, seconds: float = 400.0) -> str:
        """Wait until it has said something so often; returns all it said."""
        deadline = time.monotonic() + seconds
        while len(re.findall(words, text := self.said.read_text())) < times:
            assert self.process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.3)
        return text

    @property
    def prefect(self) -> str:
        addresses: dict[str, str] = json.loads((self.home / "services.json").read_text())["addresses"]
        return addresses["prefect"]

    def log(self, name: str) -> str:
        return (self.home / "logs" / f"{name}.log").read_text()

    def posted(self, path: str, body: dict[str, Any]) -> Any:
        """What the Prefect API answers."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.prefect}/api{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    started = Up(tmp_path / "home", str(tmp_path))
    yield started
    if started.process.poll() is None:
        started.process.terminate()
    started.process.wait(60)


def service(up: Up, descendants: Callable[[int], set[int]], word: str) -> int:
    """Id of the process that a supervisor runs, by a word of its command."""
    for pid in descendants(up.process.pid):
        command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        if word in command and "_supervisor.py" in Path(f"/proc/{parent}/cmdline").read_text():
            return pid
    raise AssertionError(f"no {word} runs")


def test_every_service_that_is_killed_comes_back(
    up: Up, descendants: Callable[[int], set[int]], alive: Callable[[str], list[str]], tmp_path: Path
) -> None:
    first = up.heard("Ctrl-C stops all of it")
    wait_for(lambda: deployments(up) == DEPLOYMENTS)
    address = up.prefect
    killed = {"deployments": "flows.serving", "gateway": "flows.gateway", "mlflow": "mlflow", "prefect": "prefect"}
    for name, word in killed.items():
        os.kill(service(up, descendants, word), signal.SIGKILL)
        up.heard(f"{name} ended with exit code 137")
        if name != "gateway":  # it is up when there is a champion
            up.heard(f"{name} is up again")
    assert service(up, descendants, "flows.gateway")
    assert up.prefect == address
    assert first in up.heard("is up again", times=3)
    wait_for(lambda: deployments(up) == DEPLOYMENTS)
    assert_set_up_once(up)

    up.process.send_signal(signal.SIGKILL)  # no chance to say good-bye
    up.process.wait()
    wait_for(lambda: not alive(f"RATCHET_TEST={tmp_path}"), 30)
    again = Up(up.home, str(tmp_path))
    again.heard("Ctrl-C stops all of it")
    wait_for(lambda: deployments(again) == DEPLOYMENTS)
    assert_set_up_once(again)
    again.process.send_signal(signal.SIGINT)
    assert again.process.wait(60) == 0
    assert not alive(f"RATCHET_TEST={tmp_path}")


def deployments(up: Up) -> set[str]:
    """Names of those that may run: on an active schedule, or by hand."""
    found = up.posted("/deployments/filter", {})
    return {one["name"] for one in found if not one["paused"] and all(s["active"] for s in one["schedules"])}


def assert_set_up_once(up: Up) -> None:
    limits = up.posted("/v2/concurrency_limits/filter", {})
    assert [(one["name"], one["limit"], one["active"]) for one in limits if one["name"] == PROMOTER] == [
        (PROMOTER, 1, True)
    ]
    automations = [one["name"] for one in up.posted("/automations/filter", {}) if one["enabled"]]
    assert sorted(automations) == ["drift starts a run", ZOMBIES]


def wait_for(holds: Callable[[], bool], seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.3)
