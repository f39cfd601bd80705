"""A service that ends by itself is started again at its address; one that ends too often is given up, with its log."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.keeper import Keeper, Kept, Patience, ServiceLost
from tasks.supervision import HOST, Plan, answers, free_port

SERVER = f"""
import http.server, os, sys, time
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *told):
        pass
print(os.getpid(), flush=True)
http.server.HTTPServer(("{HOST}", int(sys.argv[1])), Answer).serve_forever()
"""
"""Prints its id, then answers."""
PARENT = "import subprocess, sys; raise SystemExit(subprocess.call([sys.executable, '-c', *sys.argv[1:]]))"
"""Runs such a server as a child of its own, as `mlflow server` does."""
EAGER = Patience(first_wait=0.1)


def server(tmp_path: Path, *before: str) -> Plan:
    port = free_port()
    command = [sys.executable, "-c", *before, SERVER, str(port)]
    return Plan("server", f"http://{HOST}:{port}", command, tmp_path / "logs")


def look_until(keeper: Keeper, holds: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        keeper.look()
        time.sleep(0.02)


def lives(kept: Kept) -> list[int]:
    """Ids of the processes that served, one a life."""
    return [int(line) for line in kept.plan.log.read_text().split()]


def test_a_killed_service_is_started_again_at_its_address(tmp_path: Path) -> None:
    said: list[str] = []
    with Keeper(said.append, EAGER) as keeper:
        kept = keeper.keep(server(tmp_path))
        assert keeper.wait_up(threading.Event())
        for life in (1, 2):
            os.kill(lives(kept)[-1], signal.SIGKILL)
            look_until(keeper, lambda life=life: kept.up and len(lives(kept)) == life + 1)  # type: ignore[misc]
            assert answers(f"{kept.plan.url}/health")
    assert not answers(f"{kept.plan.url}/health")
    assert [line.split(" after")[0] for line in said] == [
        f"server ended with exit code 137: starting it again in 0.1 s ({kept.plan.log})",
        "server is up again",
        f"server ended with exit code 137: starting it again in 0.2 s ({kept.plan.log})",
        "server is up again",
    ]


def test_a_killed_supervisor_leaves_nobody_at_the_address(tmp_path: Path) -> None:
    with Keeper(lambda _: None, EAGER) as keeper:
        kept = keeper.keep(server(tmp_path, PARENT))
        assert keeper.wait_up(threading.Event())
        kept.service.process.kill()  # its service dies with it; that one's child is nobody's
        look_until(keeper, lambda: kept.up and len(lives(kept)) == 2)
    assert not answers(f"{kept.plan.url}/health")


def test_what_ends_again_and_again_is_given_up_with_the_end_of_its_log(tmp_path: Path) -> None:
    broken = Plan("server", "http://127.0.0.1:9", [sys.executable, "-c", "print('no such table'); exit(3)"], tmp_path)
    said: list[str] = []
    with Keeper(said.append, Patience(ends=3, first_wait=0.01)) as keeper, pytest.raises(ServiceLost) as caught:
        keeper.keep(broken)
        keeper.wait_up(threading.Event())
    assert "server ended with exit code 3, 3 times in 10 minutes" in str(caught.value)
    assert str(caught.value).endswith("no such table\n" * 2 + "no such table")
    assert len(said) == 2


def test_ends_that_are_long_ago_do_not_count(tmp_path: Path) -> None:
    brief = Plan("brief", "", [sys.executable, "-c", "import time; time.sleep(0.3)"], tmp_path)
    with Keeper(lambda _: None, Patience(ends=2, within=0.2, first_wait=0.01)) as keeper:
        kept = keeper.keep(brief)
        first = kept.service.process.pid
        look_until(keeper, lambda: kept.service.process.pid != first)
        second = kept.service.process.pid
        look_until(keeper, lambda: kept.service.process.pid != second)


def test_a_slow_start_is_told_and_one_without_end_is_given_up(tmp_path: Path) -> None:
    deaf = Plan("deaf", "http://127.0.0.1:9", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path)
    said: list[str] = []
    with Keeper(said.append, Patience(tell_every=0.1, start=0.8)) as keeper, pytest.raises(ServiceLost) as caught:
        keeper.keep(deaf)
        keeper.wait_up(threading.Event())
    assert "deaf was not up after 1 s" in str(caught.value)
    assert said[0].startswith("deaf is not up yet after 1 s") or said[0].startswith("deaf is not up yet after 0 s")


def test_one_that_waits_for_others_is_not_waited_for(tmp_path: Path) -> None:
    deaf = Plan("deaf", "http://127.0.0.1:9", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path)
    with Keeper(lambda _: None, Patience(start=0.0)) as keeper:
        keeper.keep(deaf, waits=True)
        kept = keeper.keep(server(tmp_path))
        kept.waits = True
        assert keeper.wait_up(threading.Event())
        keeper.look()
        assert keeper.kept[0].service.alive


def test_ctrl_c_while_it_starts_is_heard(tmp_path: Path) -> None:
    deaf = Plan("deaf", "http://127.0.0.1:9", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path)
    stop = threading.Event()
    stop.set()
    with Keeper(lambda _: None) as keeper:
        keeper.keep(deaf)
        assert not keeper.wait_up(stop)
