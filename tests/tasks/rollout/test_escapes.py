"""Attempts to get out of a sandbox, or from one call into the next: each is refused, and works where nothing holds it.

Code prints ESCAPED where its attempt worked. `{...}` stands for what the fixture `host` holds outside of the sandbox.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from data_contracts.records import Limits
from tasks.rollout.sandbox import WarmPool

ROOT = Path(__file__).resolve().parents[3]
LIMITS = Limits(seconds=20, memory_mb=128)
SHORT = Limits(seconds=0.5, memory_mb=128)
LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
KEPT = "import os\nif os.path.exists('../kept'): print('ESCAPED')"


class Attempt(NamedTuple):
    """`then` runs in the next call. `naive`: it is run without a sandbox too, as root where `root` says so."""

    code: str
    then: str = ""
    naive: bool = True
    root: bool = False


ATTEMPTS = {
    # files
    "write outside": Attempt("open({outside!r}, 'w'); print('ESCAPED')"),
    "write into Python": Attempt("import os; open(os.__file__ + 'x', 'w'); print('ESCAPED')", naive=False),
    "write into the runner": Attempt("open('/ratchet/tasks/rollout/x', 'w'); print('ESCAPED')", naive=False),
    "read a secret": Attempt("if 's3cret' in open({secret!r}).read(): print('ESCAPED')"),
    "read a secret over a link": Attempt("import os; os.symlink({secret!r}, 'x'); open('x').read(); print('ESCAPED')"),
    "link a secret here": Attempt("import os; os.link({secret!r}, 'x'); print('ESCAPED')"),
    "read the repository": Attempt("if open({repository!r}).read(): print('ESCAPED')"),
    "read the shadow file": Attempt("if open('/etc/shadow').read(): print('ESCAPED')", root=True),
    "read an inherited descriptor": Attempt(
        "import os\nfor fd in range(3, 256):\n"
        "    try: found = os.pread(fd, 99, 0)\n    except OSError: continue\n"
        "    if b's3cret' in found: print('ESCAPED')"
    ),
    "the environment": Attempt("import os\nif 'RATCHET_SECRET' in os.environ: print('ESCAPED')"),
    "the parent's environment": Attempt(
        "import os\nif b'PATH' in open(f'/proc/{{os.getppid()}}/environ', 'rb').read(): print('ESCAPED')"
    ),
    "the parent's memory": Attempt(
        "import os; open(f'/proc/{{os.getppid()}}/mem', 'r+b'); print('ESCAPED')", root=True
    ),
    # network
    "loopback": Attempt("import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('ESCAPED')"),
    "the network": Attempt(
        "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 9)); print('ESCAPED')",
        naive=False,
    ),
    "an abstract socket": Attempt("import socket; socket.socket(1).connect({abstract!r}); print('ESCAPED')"),
    "a socket file": Attempt("import socket; socket.socket(1).connect({socket!r}); print('ESCAPED')"),
    # processes
    "signal a process": Attempt("import os; os.kill({victim}, 0); print('ESCAPED')"),
    "see processes": Attempt(
        "import os\nif len([p for p in os.listdir('/proc') if p.isdigit()]) > 2: print('ESCAPED')"
    ),
    "kill all others": Attempt("import os; os.kill(-1, 9)", naive=False),
    "trace the parent": Attempt(
        LIBC + "if libc.ptrace(0x4206, os.getppid(), 0, 0) == 0: print('ESCAPED')", root=True
    ),
    "limit the parent": Attempt(
        "import os, resource as r; r.prlimit(os.getppid(), r.RLIMIT_CORE, (0, 0)); print('ESCAPED')"
    ),
    "slow the parent": Attempt(
        "import os; os.setpriority(0, os.getppid(), os.getpriority(0, os.getppid())); print('ESCAPED')"
    ),
    "bind the parent": Attempt(
        "import os; os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0)); print('ESCAPED')"
    ),
    "the parent's descriptors": Attempt("import os; os.readlink(f'/proc/{{os.getppid()}}/fd/0'); print('ESCAPED')"),
    # privileges
    "chroot": Attempt("import os; os.chroot('/'); print('ESCAPED')", root=True),
    "a namespace": Attempt(LIBC + "if libc.unshare(0x10000000) == 0: print('ESCAPED')", root=True),
    "mount": Attempt(LIBC + "if libc.mount(b'none', b'/tmp', b'tmpfs', 0, b'') == 0: print('ESCAPED')", naive=False),
    "unmount": Attempt(LIBC + "if libc.umount2(b'/proc', 2) == 0: print('ESCAPED')", naive=False),
    "become root": Attempt("import os; os.setuid(0); print('ESCAPED')", root=True),
    "gain rights by a program": Attempt(
        "if 'NoNewPrivs:\\t0' in open('/proc/self/status').read(): print('ESCAPED')"
    ),
    "capabilities": Attempt(
        "s = open('/proc/self/status').read()\nif int(s.split('CapPrm:')[1].split()[0], 16): print('ESCAPED')",
        root=True,
    ),
    "a device": Attempt("import os; os.mknod('x', 0o020666, os.makedev(1, 3)); print('ESCAPED')", root=True),
    "the kernel's settings": Attempt("open('/proc/sys/kernel/core_pattern', 'a'); print('ESCAPED')", root=True),
    "the host's name": Attempt("import socket\nif socket.gethostname() != 'sandbox': print('ESCAPED')"),
    "io_uring": Attempt(LIBC + "if libc.syscall(425, 1, 0) == 0 or ctypes.get_errno() != 1: print('ESCAPED')"),
    # into the next call
    "keep a file": Attempt("open('../kept', 'w')", KEPT),
    "keep a daemon's file": Attempt(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n"
        "    time.sleep(.2); open('../kept', 'w'); os._exit(0)",
        "import time; time.sleep(.5)\n" + KEPT,
    ),
    "keep a mark on the folder": Attempt(
        "import os; os.utime('..', (77, 77))", "import os\nif os.stat('..').st_mtime == 77: print('ESCAPED')"
    ),
    "keep an attribute of the folder": Attempt(
        "import os; os.setxattr('..', 'user.kept', b'x')",
        "import os\nif os.listxattr('..'): print('ESCAPED')",
        naive=False,
    ),
    "keep shared memory": Attempt(
        LIBC + "libc.shmget(7707, 4096, 0o1666)",
        LIBC + "i = libc.shmget(7707, 0, 0)\nif i >= 0: libc.shmctl(i, 0, 0); print('ESCAPED')",
    ),
    "keep a semaphore": Attempt(
        LIBC + "libc.semget(7707, 1, 0o1666)",
        LIBC + "i = libc.semget(7707, 0, 0)\nif i >= 0: libc.semctl(i, 0, 0); print('ESCAPED')",
    ),
    "keep a message": Attempt(
        LIBC + "libc.msgget(7707, 0o1666)",
        LIBC + "i = libc.msgget(7707, 0)\nif i >= 0: libc.msgctl(i, 0, 0); print('ESCAPED')",
    ),
    "keep a POSIX queue": Attempt(
        LIBC + "libc.mq_open(b'/ratchet-kept', 0o102, 0o600, None)",
        LIBC + "if libc.mq_unlink(b'/ratchet-kept') == 0: print('ESCAPED')",
    ),
    "keep a file in /dev/shm": Attempt(
        "open('/dev/shm/ratchet-kept', 'w')",
        "import os\nif os.path.exists('/dev/shm/ratchet-kept'): os.unlink('/dev/shm/ratchet-kept'); print('ESCAPED')",
    ),
    "keep a key": Attempt(
        LIBC + "libc.syscall(248, b'user', b'ratchet', b'x', 1, -4)",
        LIBC + "if libc.syscall(249, b'user', b'ratchet', 0, 0) > 0: print('ESCAPED')",
        naive=False,
    ),
    "take the folder away": Attempt(
        "import os; os.rename('../work', '../x'); os.symlink('/usr', '../work')", naive=False
    ),
    "close the folder": Attempt("import os; os.chmod('..', 0)", naive=False),
    "patch Python": Attempt(
        "import json; json.dumps = None\nimport builtins; builtins.print = None",
        "import json\nif json.dumps is None: print('ESCAPED')",
        naive=False,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(size=1, name="escapes", require_isolation=True) as warm:
        yield warm


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """Things on this machine that code in a sandbox must not reach: as they would be beside a pipeline."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "secret").write_text("s3cret")
    abstract, named = f"\0ratchet-{os.getpid()}", str(folder / "socket")
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as hidden,
        socket.socket(socket.AF_UNIX) as shown,
        subprocess.Popen(["sleep", "300"]) as victim,
        open(folder / "secret") as secret,
        pytest.MonkeyPatch.context() as patch,
    ):
        for server, address in ((hidden, abstract), (shown, named)):
            server.bind(address)
            server.listen()
        os.set_inheritable(secret.fileno(), True)
        patch.setenv("RATCHET_SECRET", "s3cret")
        places = {"outside": str(folder / "written"), "secret": str(folder / "secret"), "socket": named}
        yield places | {
            "repository": str(ROOT / "pyproject.toml"),
            "abstract": abstract,
            "port": tcp.getsockname()[1],
            "victim": victim.pid,
        }
        victim.kill()


def steps(name: str, host: dict[str, object]) -> list[str]:
    attempt = ATTEMPTS[name]
    return [code.format(**host) if "{" in code else code for code in (attempt.code, attempt.then) if code]


@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_escape_is_refused(pool: WarmPool, host: dict[str, object], name: str) -> None:
    for code in steps(name, host):
        assert "ESCAPED" not in pool.run(["python", "main.py"], {"main.py": code}, LIMITS).stdout
    after = pool.run(["python", "-c", "open('x', 'w').write('x'); print('in order')"], {}, LIMITS)
    assert after.stdout == "in order\n"
    assert not os.path.exists(str(host["outside"]))


@pytest.mark.parametrize("name", [name for name, attempt in ATTEMPTS.items() if attempt.naive])
def test_the_attempt_works_without_a_sandbox(tmp_path: Path, host: dict[str, object], name: str) -> None:
    if ATTEMPTS[name].root and os.getuid() != 0:
        pytest.skip("needs root")
    outside = {"outside": str(tmp_path / "written"), "secret": host["secret"]}
    (tmp_path / "work").mkdir()
    said = ""
    for code in steps(name, host | outside):
        # a shell between: pytest-xdist may overwrite what /proc shows of this process's environment
        command = ["sh", "-c", '"$0" -S -c "$1"; true', sys.executable, code]
        done = subprocess.run(command, cwd=tmp_path / "work", close_fds=False, capture_output=True, text=True)
        said += done.stdout + done.stderr
    assert "ESCAPED" in said


# using too much

OVERUSES = {
    "print a gigabyte": ("for _ in range(1000): print('x' * 10**6)", "output", ""),
    "a file of a gigabyte": ("f = open('x', 'wb')\nwhile True: f.write(b'x' * 2**24)", "exit", "File too large"),
    "many files": ("import os\nfor n in range(10**6): os.mkdir(str(n))", "error", "more than 10000 files"),
    "memory": ("x = [b'x' * 2**24 for _ in range(64)]", "memory", "MemoryError"),
    "memory in files without a name": (
        "import os\nfor n in range(64): os.write(os.memfd_create(str(n)), b'x' * 2**24)",
        "exit", "Operation not permitted",
    ),
    "memory in children": (
        "import os, time\nfor _ in range(3): os.fork()\nx = b'x' * 2**25\ntime.sleep(9)", "memory", "in all processes",
    ),
    "threads": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "", "",
    ),
    "time, deaf to SIGTERM": (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\nwhile True: pass", "timeout", "",
    ),
    "time, in a session of its own": ("import os\nos.fork() or os.setsid()\nwhile True: pass", "timeout", ""),
    "time, stopped": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "timeout", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", OVERUSES)
def test_an_overuse_is_ended_and_the_next_call_is_in_order(pool: WarmPool, name: str) -> None:
    code, ended, note = OVERUSES[name]
    limits = SHORT if name.startswith("time") else Limits(seconds=20, memory_mb=128)
    result = pool.run(["python", "-c", code], {}, limits)
    assert result.ended == ended if ended else result.ended != "exit" or result.exit_code
    assert note in result.stderr
    assert result.exit_code != 0
    after = "import os; print(os.listdir('/tmp'), len([p for p in os.listdir('/proc') if p.isdigit()]))"
    assert pool.run(["python", "-c", after], {}, LIMITS).stdout == "['work'] 2\n"


def test_a_fork_bomb_does_not_stop_another_sandbox() -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    with WarmPool(size=2, name="bombed", require_isolation=True) as two, ThreadPoolExecutor(1) as threads:
        call = threads.submit(two.run, ["python", "-c", bomb], {}, LIMITS)
        said = [two.run(["python", "-c", f"print({n})"], {}, LIMITS).stdout for n in range(5)]
        assert call.result().ended == "error"
    assert said == [f"{n}\n" for n in range(5)]
