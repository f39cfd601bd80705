"""A service ends, with all its children, when whoever started it is gone, however that happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.supervision import SUPERVISOR, Plan, log_end, supervised

FAMILY = (
    "import os, subprocess, time; child = subprocess.Popen(['sleep', '300'])\n"
    "print(os.getpid(), child.pid, flush=True); time.sleep(300)"
)
"""A service with a child of its own; prints both ids."""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + FAMILY


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def eventually(holds: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def parent(program: str) -> subprocess.Popen[str]:
    """A process that keeps a service under a supervisor, as `supervised` does, and does nothing else."""
    code = (
        "import subprocess,sys,time\n"
        f"p=subprocess.Popen([sys.executable,'-I','-S',{str(SUPERVISOR)!r},sys.executable,'-c',{program!r}],"
        "stdin=subprocess.PIPE,start_new_session=True)\n"
        "print(p.pid, flush=True)\ntime.sleep(300)"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def family_of(process: subprocess.Popen[str]) -> list[int]:
    """Ids of supervisor, service and the service's child."""
    assert process.stdout is not None
    return [int(word) for _ in range(2) for word in process.stdout.readline().split()]


@pytest.mark.parametrize("program", [FAMILY, STUBBORN], ids=["civil", "ignores SIGTERM"])
def test_kill_9_of_the_parent_leaves_nothing(program: str) -> None:
    process = parent(program)
    family = family_of(process)
    assert len(family) == 3
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert eventually(lambda: all(gone(pid) for pid in family))


def test_kill_9_of_the_supervisor_ends_the_service() -> None:
    process = parent(FAMILY)
    supervisor, service, child = family_of(process)
    os.kill(supervisor, signal.SIGKILL)
    assert eventually(lambda: gone(service))
    os.kill(child, signal.SIGKILL)  # the kernel ends the service alone
    process.kill()
    process.wait()


def test_leaving_the_context_ends_the_service_and_keeps_its_log(tmp_path: Path) -> None:
    with supervised(Plan("family", "", [sys.executable, "-c", FAMILY], tmp_path / "logs")) as service:
        assert eventually(lambda: len(service.plan.log.read_text().split()) == 2)
        pids = [int(word) for word in service.plan.log.read_text().split()]
        assert service.alive
    assert all(gone(pid) for pid in pids)


def test_the_end_of_a_log_says_which_log_it_is(tmp_path: Path) -> None:
    log = tmp_path / "vllm-0.log"
    log.write_text("".join(f"line {number}\n" for number in range(40)))
    assert log_end(log).splitlines() == [f"the end of {log}:", *(f"line {number}" for number in range(25, 40))]
