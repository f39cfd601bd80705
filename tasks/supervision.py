"""A service under a supervisor: it ends, with its children, when whoever started it is gone, also by SIGKILL.

command -> supervisor -> service, its output kept in a log;  this process's end of the pipe closes -> all of it ends
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
SUPERVISOR = Path(__file__).with_name("_supervisor.py")
_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Service:
    """A service under its supervisor."""

    name: str
    url: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


@contextmanager
def supervised(name: str, url: str, command: list[str], logs: Path, variables: Mapping[str, str]) -> Iterator[Service]:
    """`command` under a supervisor that ends it, with its children, when this process is gone.

    Its output goes to `<logs>/<name>.log`; `variables` are added to this process's environment.
    """
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR), *command],
            stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, **variables, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    try:
        yield Service(name, url, log, process)
    finally:
        if process.stdin is not None:
            process.stdin.close()  # what the supervisor waits for
        process.wait()


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
