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
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from data_contracts.records import Limits
from tasks.rollout._bwrap import SandboxError
from tasks.rollout._sandbox_process import Worker, WorkerDied

Ended = Literal["exit", "timeout", "memory", "output", "error"]
"""How a call ended: by itself, at a limit of time, memory or output, or "error": too many processes, bad files."""

__all__ = ["Ended", "SandboxError", "SandboxResult", "WarmPool", "run"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """What a call did. `exit_code` is negative where a signal ended it; stdout and stderr keep 64 KiB each."""

    exit_code: int
    stdout: str
    stderr: str
    ended: Ended
    seconds: float


def run(
    argv: Sequence[str], files: Mapping[str, str], limits: Limits, *, require_isolation: bool = False
) -> SandboxResult:
    """Run argv once, in a sandbox of its own, in a fresh folder that holds `files`; raises SandboxError.

    `limits.memory_mb` is address space on top of what a bare interpreter maps; `limits.seconds` is wall-clock time.
    """
    worker = Worker("once", preload=False, require_isolation=require_isolation)
    try:
        return _result(worker.call(_program(argv, files, limits)))
    except WorkerDied as died:
        raise SandboxError(f"the sandbox died during the call: {died}") from died
    finally:
        worker.close()


class WarmPool:
    """`size` warm sandboxes, a fork per call; to be used from any number of threads, not across a fork.

    `.run(["python", ...], files, limits)` forks the warm interpreter; any other argv is executed. A sandbox that
    died is replaced and its call retried once. Leave by `with` or `close()`; if the process is killed, all are gone.
    """

    def __init__(self, size: int = 2, name: str = "agent", *, require_isolation: bool = False) -> None:
        if size < 1:
            raise ValueError(f"a pool needs at least one sandbox, not {size}")
        self.size, self.name, self._require_isolation = size, name, require_isolation
        self._idle: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        self._lock = threading.Lock()
        self._alive: set[Worker] = set()
        self._closed = False
        try:
            for _ in range(size):
                self._idle.put(self._start())
        except BaseException:
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
            except WorkerDied as died:
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

    def _start(self) -> Worker:
        if self._closed:
            raise SandboxError(f"sandbox pool {self.name} is closed")
        worker = Worker(self.name, preload=True, require_isolation=self._require_isolation)
        with self._lock:
            if not self._closed:
                self._alive.add(worker)
                return worker
        worker.close()
        raise SandboxError(f"sandbox pool {self.name} is closed")


def _program(argv: Sequence[str], files: Mapping[str, str], limits: Limits) -> dict[str, Any]:
    if not argv:
        raise ValueError("argv is empty: give the program to run, such as ['python', 'main.py']")
    use = {"seconds": limits.seconds, "memory_mb": limits.memory_mb}
    return {"kind": "program", "argv": list(argv), "files": dict(files), **use}


def _result(reply: dict[str, Any]) -> SandboxResult:
    note = f"\n[{reply['note']}]" if reply["note"] else ""
    stderr = (reply["stderr"] + note).lstrip("\n")
    return SandboxResult(reply["exit_code"], reply["stdout"], stderr, reply["ended"], reply["seconds"])
