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

from flows import services
from flows.services import SUPERVISOR, environment, free_port, port_or_free, supervised, wait_healthy

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
    with supervised("family", "", [sys.executable, "-c", FAMILY], tmp_path, {}) as service:
        assert eventually(lambda: len(service.log.read_text().split()) == 2)
        pids = [int(word) for word in service.log.read_text().split()]
        assert service.alive
    assert all(gone(pid) for pid in pids)


def test_a_service_that_ends_at_once_is_said_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such table'); raise SystemExit(3)"]
    url = f"http://127.0.0.1:{free_port()}"
    with supervised("mlflow", url, command, tmp_path, {}) as service, pytest.raises(RuntimeError) as caught:
        wait_healthy(service)
    assert "exit code 3" in str(caught.value)
    assert "no such table" in str(caught.value)


def test_services_that_do_not_answer_are_not_running(tmp_path: Path) -> None:
    assert services.running(tmp_path) == {}
    (tmp_path / "services.json").write_text(f'{{"addresses": {{"prefect": "http://127.0.0.1:{free_port()}"}}}}')
    assert services.running(tmp_path) == {}


def test_a_taken_port_is_the_users_to_mend() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(services.UserError, match="is taken"):
            port_or_free(taken.getsockname()[1], "the Prefect UI")


def test_telemetry_is_off_in_everything_that_is_started(tmp_path: Path) -> None:
    variables = environment(tmp_path)
    assert variables["DO_NOT_TRACK"] == "1"
    assert variables["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert variables["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert variables["GX_ANALYTICS_ENABLED"] == "false"
