"""Process 1 of a sandbox: it forks one child per request and runs nothing of an agent's itself.

fork ahead -> request frame -> fresh folder -> hand over -> watch -> kill everything else -> empty the folder -> reply

The child is forked before its request comes, so that the fork costs the owner no time; no code of an agent's has run
in it or in its parent. Process 1 is not dumpable, so nobody inside traces or reads it. The pipe it reads requests
from is watched during calls too: at its end (the owner died) the process exits, and the kernel kills the whole
namespace. Standard library only: it runs under `python -P -s -S`, outside of the project.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import sys
import time
import types
from typing import Any, NamedTuple

from tasks.rollout._check_child import know_refused
from tasks.rollout._check_modules import know_loaded
from tasks.rollout._seccomp import install
from tasks.rollout._warm_child import AT_FORK, run_child
from tasks.rollout._warm_io import HOME, clear, read_frame, write_files, write_frame
from tasks.rollout._warm_watch import ISOLATED, kill_all, pages, watch

KEPT = 64 * 1024
"""Bytes of stdout, and of stderr, that a call may write; one more ends it."""
REPORT_KEPT = 256 * 1024
"""Bytes a list of checks may report."""
# fmt: off
PRELOADED = (
    "abc", "ast", "asyncio", "bisect", "collections", "collections.abc", "contextlib", "copy", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io", "itertools",
    "json", "logging", "math", "operator", "os", "pathlib", "random", "re", "runpy", "statistics", "string",
    "textwrap", "threading", "time", "traceback", "types", "typing", "unittest",
)
# fmt: on
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36


class _Spare(NamedTuple):
    """A child that waits for its request: where to write it, and the read ends of its pipes by stream."""

    pid: int
    control: int
    pipes: dict[str, int]


def main() -> None:
    """Serve requests from stdin, replies to stdout, until stdin ends or the folder cannot be emptied."""
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    _harden()
    if "--preload" in sys.argv:
        _preload()
    know_refused()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tasks", "ctypes", "_ctypes", "__main__")]:
        del sys.modules[name]  # an agent's module may carry such a name; a check must be seen to import ctypes
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.path.pop(0)
    know_loaded()
    gc.collect()
    gc.freeze()
    base = pages(os.getpid())
    write_frame(replies, "ready")
    try:
        _serve_all(requests, replies, base)
    finally:
        if not ISOLATED:  # no namespace ends with this process
            kill_all(0)
            clear()
            os.rmdir(HOME)


def _serve_all(requests: int, replies: int, base: tuple[int, int]) -> None:
    spoiled = False
    while not spoiled:
        spare = _fork(base[0])
        try:
            request = read_frame(requests)
        except EOFError:
            return
        reply = _serve(request, spare, requests, base[1])
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
    for option, value in ((_PR_SET_DUMPABLE, 0), (_PR_SET_CHILD_SUBREAPER, 1)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option})")
    install(network=ISOLATED)


def _fork(base: int) -> _Spare:
    control, pipes = os.pipe(), {name: os.pipe() for name in ("stdout", "stderr", "report")}
    pid = os.fork()
    if pid == 0:
        os.close(control[1])
        run_child(control[0], {name: ends[1] for name, ends in pipes.items()}, base)
    for end in (control[0], *(ends[1] for ends in pipes.values())):
        os.close(end)
    return _Spare(pid, control[1], {name: ends[0] for name, ends in pipes.items()})


def _serve(request: dict[str, Any], spare: _Spare, owner: int, base: int) -> dict[str, Any]:
    names = ("report",) if request["kind"] == "checks" else ("stdout", "stderr")
    reply: dict[str, Any] = {"ended": "error", "exit_code": 127, "seconds": 0.0, "note": "", "spoiled": False}
    reply |= dict.fromkeys(names, "")
    try:
        write_files(request.pop("files"))
    except (OSError, ValueError) as error:
        reply["note"] = f"the files could not be written: {error}"
        kill_all(spare.pid)
    else:
        _run_child(request, spare, names, owner, base, reply)
    for fd in (spare.control, *spare.pipes.values()):
        os.close(fd)
    try:
        clear()
    except (OSError, RecursionError):
        reply["spoiled"] = True  # the owner starts a fresh sandbox instead
    return reply


def _run_child(
    request: dict[str, Any], spare: _Spare, names: tuple[str, ...], owner: int, base: int, reply: dict[str, Any]
) -> None:
    buffers = {spare.pipes[name]: bytearray() for name in names}
    kept = REPORT_KEPT if request["kind"] == "checks" else KEPT
    started = time.monotonic()
    write_frame(spare.control, request)
    ended, note = watch(spare.pid, buffers, kept, owner, request["seconds"], request["memory_mb"], base)
    reply["seconds"] = time.monotonic() - started
    exit_code = os.waitstatus_to_exitcode(kill_all(spare.pid))
    for fd, buffer in buffers.items():
        while len(buffer) <= kept and (data := os.read(fd, 65536)):
            buffer += data
        if len(buffer) > kept and ended == "exit":
            ended, note = "output", f"more than {kept} bytes were written"
    reply |= {name: buffers[spare.pipes[name]][:kept].decode("utf-8", "replace") for name in names}
    if ended == "exit" and (exit_code == -signal.SIGKILL or _out_of_memory(reply.get("stderr", ""))):
        ended = "memory"
    reply |= {"ended": ended, "exit_code": exit_code, "note": note}


def _out_of_memory(stderr: str) -> bool:
    lines = stderr.rstrip().splitlines()
    return bool(lines) and lines[-1].startswith("MemoryError")
