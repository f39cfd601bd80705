"""A service under a supervisor: it ends, with its children, when whoever started it is gone, also by SIGKILL.

Plan -> supervisor -> service, its output kept in a log;  this process's end of the pipe closes -> all of it ends
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
SUPERVISOR = Path(__file__).with_name("_supervisor.py")
_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Plan:
    """How a service is started: what it writes goes to `<logs>/<name>.log`."""

    name: str
    url: str
    """Where it listens; empty where nothing does."""
    command: list[str]
    logs: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's environment."""
    health: str = "/health"
    """Where, under `url`, it answers with success once it is up."""

    @property
    def log(self) -> Path:
        return self.logs / f"{self.name}.log"

    def up(self) -> bool:
        """Whether it answers; one that listens nowhere is not asked."""
        return not self.url or answers(self.url + self.health)


@dataclass(frozen=True, slots=True)
class Service:
    """A service under its supervisor."""

    plan: Plan
    process: subprocess.Popen[bytes]

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """End it with all its children; returns when they are gone."""
        if self.process.stdin is not None:
            self.process.stdin.close()  # what the supervisor waits for
        self.process.wait()
        for orphan in _session(self.process.pid):  # where the supervisor was killed, the kernel ends its child alone
            with suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)


def start(plan: Plan, *, append: bool = False) -> Service:
    """Start a plan under a supervisor; `append` keeps what its log says already."""
    plan.logs.mkdir(parents=True, exist_ok=True)
    with plan.log.open("ab" if append else "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR), *plan.command],
            stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, **plan.variables, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    return Service(plan, process)


@contextmanager
def supervised(plan: Plan) -> Iterator[Service]:
    """A plan, started, under a supervisor that ends it, with its children, when this process is gone."""
    service = start(plan)
    try:
        yield service
    finally:
        service.end()


def log_end(log: Path) -> str:
    """The last lines of a log, after a line that says which."""
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
    return f"the end of {log}:\n{tail}"


def answers(address: str) -> bool:
    """Whether an address answers with success within two seconds. Proxies are not asked for loopback."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def free_port() -> int:
    """A port that is free on loopback now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _session(leader: int) -> list[int]:
    """Ids of the living processes of a session; none where the system has no /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(folder.name))
    return found


if __name__ == "__main__":  # a container's health check: python -m tasks.supervision ADDRESS
    sys.exit(not answers(sys.argv[1]))
