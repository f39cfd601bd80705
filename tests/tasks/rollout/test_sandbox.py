"""The sandbox holds what runs in it, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from data_contracts.records import Limits
from tasks.rollout.sandbox import SandboxError, SandboxResult, WarmPool, run

ROOT = Path(__file__).resolve().parents[3]
LIMITS = Limits(seconds=20, memory_mb=128)
SHORT = Limits(seconds=1.0, memory_mb=128)


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(size=1, name="test", require_isolation=True) as warm:
        yield warm


def code(pool: WarmPool, source: str, limits: Limits = LIMITS) -> SandboxResult:
    return pool.run(["python", "main.py"], {"main.py": source}, limits)


def descendants(pid: int) -> list[int]:
    """Living processes below `pid`, by their parents."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] != "Z":
                parents[int(entry)] = int(fields[1])
    found, fresh = [], [pid]
    while fresh:
        fresh = [child for child, parent in parents.items() if parent in fresh]
        found += fresh
    return found


def gone(pids: list[int], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and alive(pid)]:
            return True
        time.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# what a call does


def test_run_executes_any_program_on_the_files() -> None:
    result = run(["sh", "-c", "cat pkg/data.txt; echo note >&2; exit 3"], {"pkg/data.txt": "hällo\n"}, LIMITS)
    assert (result.exit_code, result.stdout, result.stderr, result.ended) == (3, "hällo\n", "note\n", "exit")


def test_run_gives_python_too() -> None:
    result = run(["python", "-c", "import sys; print(sys.argv)", "a"], {}, LIMITS)
    assert (result.stdout, result.exit_code, result.ended) == ("['-c', 'a']\n", 0, "exit")


def test_warm_python_is_a_python(pool: WarmPool) -> None:
    files = {"main.py": "import sys, helper\nprint(__name__, sys.argv[1:], helper.x)\n", "helper.py": "x = 7\n"}
    assert pool.run(["python", "main.py", "a", "b"], files, LIMITS).stdout == "__main__ ['a', 'b'] 7\n"
    assert pool.run(["python", "-m", "main", "c"], files, LIMITS).stdout == "__main__ ['c'] 7\n"
    assert pool.run(["python", "-V"], {}, LIMITS).stdout.startswith("Python 3.")
    assert pool.run(["sh", "-c", "echo $((6*7))"], {}, LIMITS).stdout == "42\n"


def test_a_traceback_shows_only_the_programs_frames(pool: WarmPool) -> None:
    result = code(pool, "def f():\n    1 / 0\nf()\n")
    assert result.exit_code == 1
    assert result.stderr.startswith('Traceback (most recent call last):\n  File "main.py", line 3, in <module>\n')
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    ("source", "exit_code"),
    [
        ("raise SystemExit(4)", 4),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit('no')", 1),
        ("import os; os._exit(9)", 9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("def f(:", 1),
    ],
)
def test_exit_codes(pool: WarmPool, source: str, exit_code: int) -> None:
    assert code(pool, source).exit_code == exit_code


def test_exit_hooks_and_threads_finish(pool: WarmPool) -> None:
    source = (
        "import atexit, threading, time\n"
        "atexit.register(lambda: print('hook'))\n"
        "threading.Thread(target=lambda: (time.sleep(.05), print('thread'))).start()\n"
    )
    assert code(pool, source).stdout == "thread\nhook\n"


def test_sets_and_random_are_the_same_in_every_sandbox(pool: WarmPool) -> None:
    source = "import random\nprint({'a','b','c','d','e'}, random.random())"
    assert code(pool, source).stdout == run(["python", "-c", source], {}, LIMITS).stdout


def test_a_module_named_as_a_standard_one_does_not_leak(pool: WarmPool) -> None:
    files = {"main.py": "import json\njson.dumps = lambda x: 'patched'\nprint(json.dumps(1))"}
    assert pool.run(["python", "main.py"], files, LIMITS).stdout == "patched\n"
    assert code(pool, "import json\nprint(json.dumps(1))").stdout == "1\n"


def test_an_absent_program_and_an_empty_command(pool: WarmPool) -> None:
    assert pool.run(["no-such-program"], {}, LIMITS).exit_code == 127
    with pytest.raises(ValueError, match="argv is empty"):
        pool.run([], {}, LIMITS)


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", "nul\0", "a" * 300])
def test_a_file_that_leaves_the_folder_is_refused(pool: WarmPool, path: str) -> None:
    result = pool.run(["python", "-c", "print(1)"], {path: ""}, LIMITS)
    assert (result.ended, result.stdout) == ("error", "")
    assert "could not be written" in result.stderr


# what a call must not do


def test_no_network(pool: WarmPool) -> None:
    source = (
        "import socket\n"
        "print([name for _, name in socket.if_nameindex()])\n"
        "for address in (('127.0.0.1', 9), ('192.0.2.1', 80)):\n"
        "    try: socket.create_connection(address, timeout=2); print('connected')\n"
        "    except OSError as error: print(type(error).__name__)\n"
    )
    assert "connected" not in code(pool, source).stdout
    assert code(pool, source).stdout.startswith("['lo']\n")
    with socket.create_server(("127.0.0.1", 0)) as server:  # a listener outside, on this machine's own loopback
        probe = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), timeout=1)"
        assert code(pool, probe).exit_code == 1
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()


def test_nothing_but_tmp_can_be_written(pool: WarmPool) -> None:
    source = (
        "import os\n"
        "for folder in ('/', '/usr', '/etc', '/dev', '/dev/shm', '/proc', '/ratchet', os.path.dirname(os.__file__)):\n"
        "    try: open(folder + '/x', 'w'); print('wrote', folder)\n"
        "    except OSError: pass\n"
        "try: open('/proc/sys/kernel/core_pattern', 'a'); print('wrote the core pattern')\n"
        "except OSError: pass\n"
        "open('x', 'w').write('fine'); open('/tmp/y', 'w').write('fine'); print(open('x').read())\n"
    )
    assert code(pool, source).stdout == "fine\n"


def test_secrets_are_out_of_sight(pool: WarmPool, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("s3cret")
    source = (
        "import os\n"
        f"paths = [{str(secret)!r}, {str(ROOT / 'pyproject.toml')!r}, '/etc/passwd', '/etc/shadow', '/home', '/var']\n"
        "print([path for path in paths if os.path.exists(path)])\n"
        "print(sorted(os.environ))\n"
        "print(os.path.exists(os.path.expanduser('~/.ssh')), os.getuid())\n"
    )
    names = ["HOME", "LANG", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED"]
    assert code(pool, source).stdout == f"[]\n{names}\nFalse 1000\n"
    assert set(os.environ) - set(names)  # there was something to hide


def test_other_processes_are_out_of_sight(pool: WarmPool) -> None:
    source = "import os\nprint(len([p for p in os.listdir('/proc') if p.isdigit()]))"
    assert code(pool, source).stdout == "2\n"


def test_process_1_cannot_be_touched(pool: WarmPool) -> None:
    source = (
        "import ctypes, os, signal\n"
        "for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGSEGV):\n"
        "    os.kill(1, number)\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.ptrace(16, 1, 0, 0))\n"
        "for name in ('mem', 'environ', 'maps', *(f'fd/{number}' for number in range(64))):\n"
        "    for mode in ('rb', 'wb'):\n"
        "        try: open(f'/proc/1/{name}', mode).read(1); print(name)\n"
        "        except OSError: pass\n"
        "print(libc.unshare(0x10000000), libc.mount(b'none', b'/tmp', b'tmpfs', 0, b''))\n"
    )
    worker = pool._idle.queue[0]
    assert code(pool, source).stdout == "-1\n-1 -1\n"
    assert code(pool, "print('still here')").stdout == "still here\n"
    assert pool._idle.queue[0] is worker


def test_the_protocol_is_out_of_reach(pool: WarmPool) -> None:
    source = (
        "import os\n"
        "for fd in range(3, 1024):\n"
        "    try: os.write(fd, b'\\0\\0\\0\\2{}'); print('wrote', fd)\n"
        "    except OSError: pass\n"
        "print(os.read(0, 1))\n"
    )
    assert code(pool, source).stdout == "b''\n"


# limits


def test_an_endless_loop_is_ended(pool: WarmPool) -> None:
    result = code(pool, "print('before', flush=True)\nwhile True: pass", SHORT)
    assert (result.ended, result.stdout, result.exit_code) == ("timeout", "before\n", -9)
    assert 1.0 <= result.seconds < 5.0


def test_a_sleeper_that_ignores_signals_is_ended(pool: WarmPool) -> None:
    source = "import signal, time\nfor n in range(1, 30):\n    try: signal.signal(n, signal.SIG_IGN)\n"
    assert code(pool, source + "    except OSError: pass\ntime.sleep(60)", SHORT).ended == "timeout"


def test_memory_is_limited(pool: WarmPool) -> None:
    result = code(pool, "x = bytearray(512 * 2**20)")
    assert (result.ended, result.exit_code) == ("memory", 1)
    assert code(pool, "x = bytearray(64 * 2**20); print(len(x))").stdout == f"{64 * 2**20}\n"
    assert code(pool, "x = []\nwhile True: x.append('y' * 10**6 + str(len(x)))").ended == "memory"


def test_memory_is_limited_over_all_processes(pool: WarmPool) -> None:
    source = (
        "import os, time\nfor _ in range(6):\n    if os.fork() == 0: break\nx = b'x' * (60 * 2**20)\ntime.sleep(20)"
    )
    assert code(pool, source, Limits(seconds=15, memory_mb=128)).ended == "memory"


def test_the_smallest_memory_limit_is_enough_for_a_small_program(pool: WarmPool) -> None:
    assert code(pool, "print(sum(range(10)))", Limits(seconds=20, memory_mb=32)).stdout == "45\n"


def test_output_is_limited(pool: WarmPool) -> None:
    result = code(pool, "while True: print('x' * 1000)")
    assert (result.ended, len(result.stdout)) == ("output", 64 * 1024)
    whole = code(pool, f"print('x' * {64 * 1024 - 1})")
    assert (whole.ended, len(whole.stdout)) == ("exit", 64 * 1024)
    assert code(pool, "import sys\nwhile True: print('x' * 1000, file=sys.stderr)").ended == "output"


def test_files_are_limited(pool: WarmPool) -> None:
    source = (
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try: open('big', 'wb').write(b'x' * (17 * 2**20))\n"
        "except OSError as error: print(error.strerror)\n"
        "import os; print(os.path.getsize('big') <= 16 * 2**20)\n"
        "try:\n    for n in range(20): open(str(n), 'wb').write(b'x' * (8 * 2**20))\n"
        "except OSError as error: print(error.strerror)\n"
    )
    assert code(pool, source).stdout == "File too large\nTrue\nNo space left on device\n"
    assert code(pool, "import os; print(os.listdir('/tmp'), os.listdir('.'))").stdout == "['work'] ['main.py']\n"


def test_a_fork_bomb_is_ended(pool: WarmPool) -> None:
    result = code(pool, "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
    assert result.ended == "error"
    assert "processes" in result.stderr
    assert result.seconds < 10
    assert code(pool, "import os; print([p for p in os.listdir('/proc') if p.isdigit()][:1])").stdout == "['1']\n"


def test_a_process_left_behind_is_gone(pool: WarmPool) -> None:
    source = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
        "os.wait(); print('done', flush=True)\n"
    )
    started = time.monotonic()
    result = code(pool, source)
    assert (result.stdout, result.ended) == ("done\n", "exit")
    assert time.monotonic() - started < 15
    assert code(pool, "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]))").stdout == "2\n"


def test_what_a_call_leaves_is_not_seen_by_the_next(pool: WarmPool) -> None:
    worker = pool._idle.queue[0]
    source = "import os\nos.makedirs('a/b'); open('a/b/c', 'w'); os.chmod('a/b', 0); os.chmod('a', 0)\n"
    code(pool, source + "os.symlink('/usr', 'link'); os.mkfifo('/tmp/pipe'); os.chmod('/tmp/work', 0)")
    assert code(pool, "import os; print(os.listdir('/tmp'), os.path.exists('/usr/bin'))").stdout == "['work'] True\n"
    assert pool._idle.queue[0] is worker


def test_a_folder_that_cannot_be_emptied_costs_the_sandbox_not_the_call(pool: WarmPool) -> None:
    source = "import os\nfor _ in range(1500):\n    os.mkdir('d' * 100); os.chdir('d' * 100)\nprint('deep')"
    assert code(pool, source).stdout == "deep\n"
    assert code(pool, "import os; print(os.listdir('/tmp'))").stdout == "['work']\n"


# the pool


def test_calls_from_many_threads(pool: WarmPool) -> None:
    with WarmPool(size=2, name="threads") as two, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda n: code(two, f"print({n} * 2)").stdout, range(40)))
    assert results == [f"{n * 2}\n" for n in range(40)]


def test_a_pool_outlives_the_thread_that_made_it() -> None:
    with ThreadPoolExecutor(1) as threads:
        made = threads.submit(WarmPool, 1, "made elsewhere").result()
    time.sleep(0.2)
    worker = made._idle.queue[0]
    assert code(made, "print(1)").stdout == "1\n"
    assert made._idle.queue[0] is worker
    made.close()


def test_a_dead_sandbox_is_replaced_and_announced(caplog: pytest.LogCaptureFixture) -> None:
    with WarmPool(size=1, name="mortal") as mortal:
        mortal._idle.queue[0]._process.kill()
        assert code(mortal, "print(1)").stdout == "1\n"
        assert "mortal" in caplog.text and "replaced" in caplog.text


def test_close_leaves_no_process_and_ends_calls_in_flight() -> None:
    before = set(descendants(os.getpid()))
    pool = WarmPool(size=2, name="closing")
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(code, pool, "import time; time.sleep(60)", Limits(seconds=60))
        time.sleep(0.3)
        started = set(descendants(os.getpid())) - before
        assert len(started) >= 4
        pool.close()
        with pytest.raises(SandboxError, match="closed"):
            call.result()
    assert gone(sorted(started))
    with pytest.raises(SandboxError, match="closed"):
        code(pool, "print(1)")
    pool.close()


OWNER = """
import sys, threading
from data_contracts.records import Limits
from tasks.rollout.sandbox import WarmPool
pool = WarmPool(size=2, name="orphan")
for _ in range(2):
    source = "import os, time\\nos.fork() or os.setsid()\\ntime.sleep(300)"
    threading.Thread(target=pool.run, args=(["python", "-c", source], {}, Limits(seconds=300))).start()
print("up", flush=True)
threading.Event().wait()
"""


def test_kill_9_of_the_owner_leaves_nothing() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None and owner.stdout.readline() == "up\n"
    deadline = time.monotonic() + 20
    while len(started := descendants(owner.pid)) < 8 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(started) >= 8  # two times: bwrap, process 1, the program and its fork
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert gone(started)


LOOPER = """
from data_contracts.records import Limits
from tasks.rollout.sandbox import WarmPool
pool = WarmPool(size=1, name="orphan", require_isolation=True)
print("up", flush=True)
pool.run(["python", "-c", "while True: pass"], {}, Limits(seconds=300))
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_cancel_of_the_owner_in_an_endless_call_leaves_nothing(end: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LOOPER], cwd=ROOT, stdout=subprocess.PIPE, stderr=-3, text=True
    ) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == "up\n"
        deadline = time.monotonic() + 20
        while len(started := descendants(owner.pid)) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(started) == 3  # bwrap, process 1, the loop
        owner.send_signal(end)
        assert owner.wait(20) != 0
    assert gone(started)
