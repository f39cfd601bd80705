"""Runs what an agent wrote: no network, no write outside its folder, limits on time, memory, processes and output.

argv, files, limits -> a process inside a bubblewrap sandbox -> SandboxResult

`run` starts a sandbox for one call; `WarmPool` keeps sandboxes with a warm Python and a child forked ahead, which
becomes the next call. `tests/benchmarks/sandbox.py` measures what each costs over the code's own time.

Who is feared: a policy that learns whatever raises its reward. It may write any program, and does everything that the
program's user may do. It must not reach the pipeline, the machine, another session, or the verdict on its own work.

What holds it, from outside to inside:
- Namespaces (bubblewrap): a network with nothing in it, processes, users, IPC and a host name of its own. It sees /usr,
  the Python installation, the files of the runner, an empty /tmp of 64 MiB, and no variable of ours. All but /tmp is
  read-only. It is an unprivileged user without capabilities, and cannot gain any or make further namespaces.
- Process 1 of the sandbox (`_warm_worker`) is ours, and runs nothing of an agent's. Code inside can neither signal nor
  trace nor read it. It counts time, output, processes, files and memory from there, kills all that is left after a
  call, daemons included, and empties /tmp. It ends when its owner ends, however that ends, and the kernel ends all
  others with it.
- A filter of system calls (`_seccomp`) refuses what would outlast a call (shared memory, queues, keys), memory that no
  limit counts, and the calls by which a process changes another one of its user, which process 1 is: its limits, its
  priority, its processors. It is there on x86-64 and 64-bit ARM.
- Limits of the process itself: address space, CPU time, 16 MiB a file, 128 descriptors, no core.

A sandbox that is not as it was before a call is thrown away. The verifier has a pool of its own, so its interpreter was
started apart and never ran a call of an agent's session; it gets the problem's own files and no others. What holds the
verdict against code that is judged is said in `checks`.

Where bubblewrap does not start, calls run in plain processes: the same limits and the same filter, which then refuses
internet sockets as well, a private folder, no variable of ours, orphans killed. But such code has the rights of the
user it runs as: it can read files, write wherever that user may, see and signal processes, fill the disk. A warning
says so once, and `rollout.require_isolation = true` refuses it. Whether bubblewrap starts is found out once a process:
a sandbox that fails later is an error, never a reason for less isolation.

Not protected against: faults of the kernel (all calls of a sandbox share it: use a virtual machine where that matters),
channels by timing or load between calls that run at the same time, a slow machine that makes honest code late, and,
as the sandbox's user is one and the same, one process of a call hindering another of the same call.
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
        self.size, self.name, self.require_isolation = size, name, require_isolation
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
        worker = Worker(self.name, preload=True, require_isolation=self.require_isolation)
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
