"""Runs what an agent wrote: no network, no write outside its folder, limits on time, memory, processes and output.

argv, files, limits -> a process inside a bubblewrap sandbox -> SandboxResult

`run` starts a sandbox for one call (about 50 ms); `WarmPool` keeps sandboxes with a warm Python and forks one process
per call (about 2 ms). In both, process 1 of the sandbox (`_warm_worker`) is ours and enforces the limits from a place
the agent's code can neither signal nor trace; the code runs without capabilities, as an unprivileged user, and sees
only /usr, the Python installation and an empty /tmp: neither the home, nor the project, nor the environment.
"""

from __future__ import annotations

import logging
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from data_contracts.records import Limits
from tasks.rollout._bwrap import SandboxError, python_command, remedy, sandbox_command
from tasks.rollout._warm_io import read_frame, write_frame

Ended = Literal["exit", "timeout", "memory", "output", "error"]
"""How a call ended: by itself, at a limit of time, memory or output, or "error": too many processes, bad files."""

__all__ = ["Ended", "SandboxError", "SandboxResult", "WarmPool", "run"]

_LOG = logging.getLogger(__name__)
_GRACE = 15.0
"""Seconds a sandbox may take on top of a call's limit, to fork and to empty the folder, before it counts as dead."""
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-spawner")
"""One thread that lives as long as the process: --die-with-parent fires when the *thread* that started bwrap ends."""


class _WorkerDied(Exception):
    """A sandbox is gone or silent."""


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """What a call did. `exit_code` is negative where a signal ended it; stdout and stderr keep 64 KiB each."""

    exit_code: int
    stdout: str
    stderr: str
    ended: Ended
    seconds: float


def run(argv: Sequence[str], files: Mapping[str, str], limits: Limits) -> SandboxResult:
    """Run argv once, in a sandbox of its own, in a fresh folder that holds `files`; raises SandboxError.

    `limits.memory_mb` is address space on top of what a bare interpreter maps; `limits.seconds` is wall-clock time.
    """
    worker = _Worker("once", preload=False)
    try:
        return _result(worker.call(_program(argv, files, limits)))
    except _WorkerDied as died:
        raise SandboxError(f"the sandbox died during the call: {died}") from died
    finally:
        worker.close()


class WarmPool:
    """`size` warm sandboxes, a fork per call; to be used from any number of threads, not across a fork.

    `.run(["python", ...], files, limits)` forks the warm interpreter; any other argv is executed. A sandbox that
    died is replaced and its call retried once. Leave by `with` or `close()`; if the process is killed, all are gone.
    """

    def __init__(self, size: int = 2, name: str = "agent") -> None:
        if size < 1:
            raise ValueError(f"a pool needs at least one sandbox, not {size}")
        self.size, self.name = size, name
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        self._lock = threading.Lock()
        self._alive: set[_Worker] = set()
        self._closed = False
        try:
            for _ in range(size):
                self._idle.put(self._start())
        except SandboxError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, argv: Sequence[str], files: Mapping[str, str], limits: Limits) -> SandboxResult:
        """As the function `run`, in a warm sandbox; blocks until one is free."""
        return _result(self.call(_program(argv, files, limits)))

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request as `_warm_worker` takes it; its reply. For `checks`; others use `run`."""
        reason = ""
        for _ in range(2):
            try:
                return self._call_once(request)
            except _WorkerDied as died:
                reason = str(died)
                if self._closed:
                    break
                _LOG.warning("sandbox pool %s: a sandbox died (%s); it is replaced", self.name, reason)
        raise SandboxError(f"sandbox pool {self.name}: the call failed twice or the pool was closed ({reason})")

    def close(self) -> None:
        """End every sandbox and all that runs in it; calls in flight raise SandboxError."""
        with self._lock:
            self._closed = True
            workers = list(self._alive)
            self._alive.clear()
        for worker in workers:
            worker.close()

    def _call_once(self, request: dict[str, Any]) -> dict[str, Any]:
        worker = self._idle.get()
        healthy = False
        try:
            if worker is None:
                worker = self._start()
            reply = worker.call(request)
            healthy = not reply["spoiled"]
            return reply
        finally:  # the slot goes back whatever happened, an interrupt included; empty unless its sandbox is in order
            if not healthy and worker is not None:
                with self._lock:
                    self._alive.discard(worker)
                worker.close()
            self._idle.put(worker if healthy else None)

    def _start(self) -> _Worker:
        if self._closed:
            raise SandboxError(f"sandbox pool {self.name} is closed")
        worker = _Worker(self.name, preload=True)
        with self._lock:
            if not self._closed:
                self._alive.add(worker)
                return worker
        worker.close()
        raise SandboxError(f"sandbox pool {self.name} is closed")


class _Worker:
    """One sandbox with its process 1; not thread safe."""

    def __init__(self, name: str, *, preload: bool) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by `close`
        command = [*sandbox_command(), *python_command(), *(["--preload"] if preload else [])]
        self._process = _SPAWNER.submit(_spawn, command, self._log).result()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._replies = self._process.stdin.fileno(), self._process.stdout.fileno()
        try:
            read_frame(self._replies, _GRACE * 2)
        except (EOFError, TimeoutError) as error:
            self._kill()
            message = self._said()
            self._release()
            raise SandboxError(remedy(name, message or str(error))) from error

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            write_frame(self._requests, request)
            reply = read_frame(self._replies, request["seconds"] + _GRACE)
        except (OSError, EOFError, ValueError) as error:  # TimeoutError is an OSError
            raise _WorkerDied(self._said() or str(error)) from error
        assert isinstance(reply, dict)
        return reply

    def close(self) -> None:
        """End it: process 1 leaves at the end of its input and the kernel ends all others with it."""
        if self._process.stdin is None or self._process.stdin.closed:
            return
        self._process.stdin.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._kill()
        self._release()

    def _kill(self) -> None:
        self._process.kill()  # bwrap; --die-with-parent takes process 1 along
        self._process.wait()

    def _release(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace").strip()[-500:]


def _program(argv: Sequence[str], files: Mapping[str, str], limits: Limits) -> dict[str, Any]:
    if not argv:
        raise ValueError("argv is empty: give the program to run, such as ['python', 'main.py']")
    use = {"seconds": limits.seconds, "memory_mb": limits.memory_mb}
    return {"kind": "program", "argv": list(argv), "files": dict(files), **use}


def _result(reply: dict[str, Any]) -> SandboxResult:
    note = f"\n[{reply['note']}]" if reply["note"] else ""
    stderr = (reply["stderr"] + note).lstrip("\n")
    return SandboxResult(reply["exit_code"], reply["stdout"], stderr, reply["ended"], reply["seconds"])


def _spawn(command: list[str], log: Any) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, bufsize=0, start_new_session=True)
    except OSError as error:
        raise SandboxError(f"bubblewrap could not be started: {error}; install the package bubblewrap") from error
