"""Runs one service and ends it, with all its children, when whoever started it is gone.

parent's pipe on stdin closes (exit or SIGKILL) -> SIGTERM to the service's process group -> SIGKILL

A file of the standard library alone, run by path, so that it is up in milliseconds. The kernel kills the service
itself should the supervisor be killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 5.0


def main(command: list[str]) -> int:
    """Run `command` until it ends or stdin closes; returns its exit code, as shells do: 137 after SIGKILL."""
    # A Ctrl-C in the terminal reaches the whole foreground group: the parent decides, not the key.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    supervisor = os.getpid()
    # a group of its own to end, in this session, by which it is found should this process be killed
    service = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=lambda: _die_with(supervisor)
    )
    try:
        while service.poll() is None and not _closed(sys.stdin.fileno()):
            pass
    finally:
        _end(service)
    return service.returncode if service.returncode >= 0 else 128 - service.returncode


def _die_with(supervisor: int) -> None:
    """In the service before it starts: the kernel kills it when the supervisor's (only) thread ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:  # it was gone before the request
            os._exit(1)


def _closed(pipe: int) -> bool:
    """Wait a little; whether the other end of the pipe is gone."""
    readable, _, _ = select.select([pipe], [], [], 0.25)
    return bool(readable) and os.read(pipe, 4096) == b""


def _end(service: subprocess.Popen[bytes]) -> None:
    """Ask the whole group to end, then make it."""
    deadline = time.monotonic() + GRACE_SECONDS
    _signal(service.pid, signal.SIGTERM)
    while _alive(service.pid) and time.monotonic() < deadline:
        service.poll()
        time.sleep(0.05)
    _signal(service.pid, signal.SIGKILL)
    service.wait()


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the group ended by itself
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
