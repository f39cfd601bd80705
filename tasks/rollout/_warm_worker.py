"""Process 1 of a sandbox: it forks one child per request and runs nothing of an agent's itself.

request frame -> fresh folder -> fork -> watch -> kill everything else -> empty the folder -> reply frame

As process 1 of its pid namespace it cannot be killed or stopped from inside, every orphan becomes its child, and one
kill(-1) ends all that a call left, fork bombs included. It is not dumpable, so nobody inside traces or reads it. The
pipe it reads requests from is watched during calls too: at its end (the owner died) the process exits, and the kernel
kills the whole namespace. Standard library only: it runs under `python -P -s -S`, outside of the project.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import sys
import time
import types
from typing import Any

from tasks.rollout._check_child import remember_modules
from tasks.rollout._warm_child import AT_FORK, run_child
from tasks.rollout._warm_io import empty, read_frame, write_files, write_frame

KEPT = 64 * 1024
"""Bytes of stdout, and of stderr, that a call may write; one more ends it."""
REPORT_KEPT = 256 * 1024
"""Bytes a list of checks may report."""
MAX_PROCESSES = 32
# fmt: off
PRELOADED = (
    "abc", "ast", "asyncio", "bisect", "collections", "collections.abc", "contextlib", "copy", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io", "itertools",
    "json", "logging", "math", "operator", "os", "pathlib", "random", "re", "runpy", "statistics", "string",
    "textwrap", "threading", "time", "traceback", "types", "typing", "unittest",
)
# fmt: on
_TICK = 0.01
_PR_SET_DUMPABLE = 4


def main() -> None:
    """Serve requests from stdin, replies to stdout, until stdin ends or the folder cannot be emptied."""
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    _harden()
    if "--preload" in sys.argv:
        _preload()
    remember_modules()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tasks", "ctypes", "_ctypes", "__main__")]:
        del sys.modules[name]  # an agent's module may carry such a name; a check must be seen to import ctypes
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.path.remove("/ratchet")
    gc.collect()
    gc.freeze()
    base = _pages(1)
    write_frame(replies, "ready")
    spoiled = False
    while not spoiled:
        try:
            request = read_frame(requests)
        except EOFError:
            return
        reply = _serve(request, requests, base)
        spoiled = reply["spoiled"]
        write_frame(replies, reply)


def _preload() -> None:
    """Import what programs commonly use; what a module would do after each fork is kept for the child's own forks.

    Those hooks free locks and seed generators, which costs more than the fork, and process 1 has a single thread.
    """
    register = os.register_at_fork
    os.register_at_fork = lambda **hooks: AT_FORK.append(hooks)
    try:
        for name in PRELOADED:
            importlib.import_module(name)
    finally:
        os.register_at_fork = register


def _harden() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a handler, process 1 is deaf to signals from inside
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")


def _serve(request: dict[str, Any], owner: int, base: tuple[int, int]) -> dict[str, Any]:
    names = ("report",) if request["kind"] == "checks" else ("stdout", "stderr")
    reply: dict[str, Any] = {"ended": "error", "exit_code": 127, "seconds": 0.0, "note": "", "spoiled": False}
    reply |= dict.fromkeys(names, "")
    try:
        write_files(request["files"])
    except (OSError, ValueError) as error:
        reply["note"] = f"the files could not be written: {error}"
    else:
        _run_child(request, names, owner, base, reply)
    try:
        empty("/tmp")
    except (OSError, RecursionError):
        reply["spoiled"] = True  # the owner starts a fresh sandbox instead
    return reply


def _run_child(
    request: dict[str, Any], names: tuple[str, ...], owner: int, base: tuple[int, int], reply: dict[str, Any]
) -> None:
    pipes = {name: os.pipe() for name in names}
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        run_child(request, {name: ends[1] for name, ends in pipes.items()}, base[0])
    buffers = {ends[0]: bytearray() for ends in pipes.values()}
    for _, end in pipes.values():
        os.close(end)
    kept = REPORT_KEPT if request["kind"] == "checks" else KEPT
    ended, note = _watch(pid, buffers, kept, request, owner, base[1])
    reply["seconds"] = time.monotonic() - started
    status = _kill_others(pid)
    for fd, buffer in buffers.items():
        while len(buffer) <= kept and (data := os.read(fd, 65536)):
            buffer += data
        os.close(fd)
        if len(buffer) > kept and ended == "exit":
            ended, note = "output", f"more than {kept} bytes were written"
    reply |= {name: buffers[ends[0]][:kept].decode("utf-8", "replace") for name, ends in pipes.items()}
    exit_code = os.waitstatus_to_exitcode(status)
    if ended == "exit" and (exit_code == -signal.SIGKILL or _out_of_memory(reply.get("stderr", ""))):
        ended = "memory"
    reply |= {"ended": ended, "exit_code": exit_code, "note": note}


def _watch(
    pid: int, buffers: dict[int, bytearray], kept: int, request: dict[str, Any], owner: int, base: int
) -> tuple[str, str]:
    """Read the child's pipes until it ends or passes a limit: (what ended it, a note)."""
    pidfd = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(owner, 0)  # reports only that the other end is gone
    for fd in (pidfd, *buffers):
        poller.register(fd, select.POLLIN)
    now = time.monotonic()
    deadline, counted = now + request["seconds"], now
    try:
        while True:
            ready = {fd for fd, _ in poller.poll(max(0.0, min(_TICK, deadline - now)) * 1000)}
            if owner in ready:
                raise SystemExit(0)
            for fd in ready & buffers.keys():
                data = os.read(fd, 65536)
                buffers[fd] += data
                if len(buffers[fd]) > kept:
                    return "output", f"more than {kept} bytes were written"
                if not data:
                    poller.unregister(fd)
            if pidfd in ready:
                return "exit", ""
            now = time.monotonic()
            if now >= deadline:
                return "timeout", f"still running after {request['seconds']:g} s"
            if now - counted >= _TICK:
                counted = now
                if excess := _excess(base, request["memory_mb"]):
                    return excess
    finally:
        os.close(pidfd)


def _kill_others(pid: int) -> int:
    """Kill and reap every other process of the namespace; the wait status of `pid`."""
    with contextlib.suppress(ProcessLookupError):  # only the ended child is left, to be reaped
        os.kill(-1, signal.SIGKILL)
    status = 0
    while True:
        try:
            reaped, its_status = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if reaped == pid:
            status = its_status


def _out_of_memory(stderr: str) -> bool:
    lines = stderr.rstrip().splitlines()
    return bool(lines) and lines[-1].startswith("MemoryError")


def _excess(base: int, memory_mb: int) -> tuple[str, str] | None:
    """Whether the call's processes together are too many or too large: a limit per process cannot tell.

    RLIMIT_NPROC does not bind processes whose owner is root outside, hence the count.
    """
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    if len(pids) > MAX_PROCESSES:
        return "error", f"more than {MAX_PROCESSES} processes"
    if len(pids) < 2:
        return None
    pages = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            pages += max(0, _pages(pid)[1] - base)
    if pages * os.sysconf("SC_PAGE_SIZE") > memory_mb * 2**20:
        return "memory", f"more than {memory_mb} MiB in all processes"
    return None


def _pages(pid: int) -> tuple[int, int]:
    """Address space in bytes and resident set in pages of a process."""
    with open(f"/proc/{pid}/statm") as file:
        size, resident = file.read().split()[:2]
    return int(size) * os.sysconf("SC_PAGE_SIZE"), int(resident)
