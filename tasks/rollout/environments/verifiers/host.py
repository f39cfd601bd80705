"""The process that has a taskset imported, and forks one process for each who connects.

python -m ...host TASKSET SOCKET -> connection -> fork -> request, reply, request, reply ... -> end

Importing the package and a taskset costs seconds, forking what has imported them milliseconds. A forked process has
its requests timed by the kernel: what does not return in time, blocking code included, is killed with all it started.
Process and forks end when whoever started this one is gone: they read the end of their pipes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import select
import signal
import socket
import sys

from tasks.rollout._warm_io import read_frame, write_frame
from tasks.rollout.environments.verifiers import desk

_REAP_SECONDS = 0.5


def main(taskset: str, listening: int) -> None:
    """Serve until stdin closes; then the process ends at once, as nothing in it has to be put away."""
    desk.warm(taskset)
    gc.freeze()  # a collection in a fork would otherwise copy all that was imported
    listener = socket.socket(fileno=listening)
    while not _closed(sys.stdin.fileno(), listening):
        with contextlib.suppress(BlockingIOError):  # nobody came, it was time to reap
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _serve(connection)
            connection.close()
        _reap()
    os._exit(0)


def _closed(stdin: int, listening: int) -> bool:
    """Wait for a connection, or a little; whether stdin has ended."""
    return stdin in select.select([stdin, listening], [], [], _REAP_SECONDS)[0]


def _serve(connection: socket.socket) -> None:
    """Answer one connection, in a process group of its own; ends the process."""
    os.setpgid(0, 0)
    sys.stdin.close()
    fd = connection.fileno()
    try:
        with asyncio.Runner() as runner, contextlib.suppress(EOFError, OSError):
            clerk = desk.Clerk(runner)
            write_frame(fd, "ready")
            while True:
                request = read_frame(fd)
                _limit(request.pop("memory_mb"))
                signal.setitimer(signal.ITIMER_REAL, request.pop("seconds"))
                reply = clerk.answer(**request)
                signal.setitimer(signal.ITIMER_REAL, 0)
                write_frame(fd, reply)
    finally:
        sys.stderr.flush()
        os._exit(0)  # the exit handlers are the parent's


def _limit(memory_mb: int) -> None:
    """Let the address space grow by so much over what it is when first asked."""
    if resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY:
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        most = mapped + memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _reap() -> None:
    """Collect forks that ended, and kill what they left behind while their id is still theirs."""
    with contextlib.suppress(ChildProcessError):  # there are none
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(ended.si_pid, signal.SIGKILL)
            os.waitpid(ended.si_pid, 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
