"""Watches a call from outside of its processes, and ends all of them.

call's pipes, /proc, the clock -> how it ended; then nothing of it lives

In a sandbox this is process 1 of a pid namespace: it cannot be killed or stopped from inside, every orphan becomes its
child, and one kill(-1) ends all that a call left, fork bombs included. A plain process has no namespace and is only
made the reaper of its orphans, so it walks down its descendants. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from tasks.rollout._warm_io import HOME

ISOLATED = os.getpid() == 1
"""Whether this is process 1 of a sandbox."""
MAX_PROCESSES = 32
MAX_FILES = 10_000
"""Files, folders and links a call may have at a time: empty ones cost memory that no limit on bytes counts."""
_TICK = 0.01


def watch(
    pid: int, buffers: dict[int, bytearray], kept: int, owner: int, seconds: float, memory_mb: int, base: int
) -> tuple[str, str]:
    """Read the pipes in `buffers` until `pid` ends or the call passes a limit: (what ended it, a note).

    `owner` is the pipe of whoever asked: at its end SystemExit. `base`: resident pages each process has from the start.
    """
    pidfd = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(owner, 0)  # reports only that the other end is gone
    for fd in (pidfd, *buffers):
        poller.register(fd, select.POLLIN)
    now = time.monotonic()
    deadline, counted = now + seconds, now
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
                return "timeout", f"still running after {seconds:g} s"
            if now - counted >= _TICK:
                counted = now
                if excess := _excess(base, memory_mb):
                    return excess
    finally:
        os.close(pidfd)


def kill_all(pid: int) -> int:
    """Kill and reap every process of the call; the wait status of `pid`."""
    status = 0
    while True:
        _kill_once()
        try:
            reaped, its_status = os.waitpid(-1, 0)
            while reaped:
                status = its_status if reaped == pid else status
                reaped, its_status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status


def _kill_once() -> None:
    for pid in (-1,) if ISOLATED else _descendants():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(pid, signal.SIGKILL)


def _descendants() -> list[int]:
    found, fresh = [], [os.getpid()]
    while fresh:
        fresh = [child for parent in fresh for child in _children(parent)]
        found += fresh
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                children += map(int, file.read().split())
    return children


def _inside() -> list[int]:
    """The call's processes."""
    if not ISOLATED:
        return _descendants()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def _excess(base: int, memory_mb: int) -> tuple[str, str] | None:
    """Whether the call's processes, or its files, together are too many or too large: a limit per process cannot tell.

    RLIMIT_NPROC does not bind processes whose owner is root outside, hence the count.
    """
    pids = _inside()
    if len(pids) > MAX_PROCESSES:
        return "error", f"more than {MAX_PROCESSES} processes"
    if ISOLATED:  # elsewhere the file system is not the call's alone
        files = os.statvfs(HOME)
        if files.f_files - files.f_ffree > MAX_FILES:
            return "error", f"more than {MAX_FILES} files"
    if len(pids) < 2:
        return None
    resident = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            resident += max(0, pages(pid)[1] - base)
    if resident * os.sysconf("SC_PAGE_SIZE") > memory_mb * 2**20:
        return "memory", f"more than {memory_mb} MiB in all processes"
    return None


def pages(pid: int) -> tuple[int, int]:
    """Address space in bytes and resident set in pages of a process."""
    with open(f"/proc/{pid}/statm") as file:
        size, resident = file.read().split()[:2]
    return int(size) * os.sysconf("SC_PAGE_SIZE"), int(resident)
