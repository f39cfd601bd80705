"""What a fork of process 1 does before and while it runs an agent's code: limits, clean descriptors, then the program.

Nothing here is trusted once the agent's code has started: the parent watches, and counts only what it sees itself.
Standard library only.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not `signal`: its enums are pages each fork would have to copy
import atexit
import builtins
import os
import resource
import runpy
import sys
import traceback
import types
from types import TracebackType
from typing import Any, NoReturn

from tasks.rollout._check_child import run_checks
from tasks.rollout._warm_io import FOLDER, read_frame
from tasks.rollout._warm_watch import ISOLATED

AT_FORK: list[dict[str, Any]] = []
"""Hooks that preloaded modules have for forks: for those of the agent's code, not for the one that starts it."""
_FILE_BYTES = 16 * 2**20
_OPEN_FILES = 128
_THREADS = 64
_COUNTS_INSIDE = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (5, 14)
"""Whether the kernel counts RLIMIT_NPROC per namespace; older ones count all of the user's processes."""
_REPORT = 3
_SELF = (__file__, "<frozen runpy>", "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")


def run_child(control: int, ends: dict[str, int], base_bytes: int) -> NoReturn:
    """Wait for a request on `control`, become the process it asks for, never return; `ends`: write ends by stream.

    Whatever does not depend on the request is done before it comes.
    """
    code = 70
    try:
        os.setsid()
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        for hooks in AT_FORK:
            os.register_at_fork(**hooks)
        _seed()
        request = read_frame(control)
        names = ("report",) if request["kind"] == "checks" else ("stdout", "stderr")
        _descriptors({name: ends[name] for name in names})
        _limits(request["seconds"], request["memory_mb"], base_bytes)
        os.chdir(FOLDER)
        if request["kind"] == "checks":
            run_checks(request["checks"], _REPORT)
            code = 0
        else:
            code = _program(request["argv"])
    finally:
        os._exit(code)  # whatever happened, this process never goes back into the parent's loop


def _seed() -> None:
    import random  # here, as its hook for forks must find process 1 listening

    random.seed(0)


def _descriptors(ends: dict[str, int]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(ends.get("stdout", null), 1)
    os.dup2(ends.get("stderr", null), 2)
    if "report" in ends:
        os.dup2(ends["report"], _REPORT, inheritable=False)
    os.closerange(_REPORT + ("report" in ends), _OPEN_FILES)


def _limits(seconds: float, memory_mb: int, base_bytes: int) -> None:
    limits = {
        resource.RLIMIT_AS: base_bytes + memory_mb * 2**20,  # what the interpreter itself maps comes on top
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: int(seconds) + 2,
        resource.RLIMIT_FSIZE: _FILE_BYTES,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
    }
    if _COUNTS_INSIDE and ISOLATED:
        limits[resource.RLIMIT_NPROC] = _THREADS
    for name, value in limits.items():
        resource.setrlimit(name, (value, value))


def _program(argv: list[str]) -> int:
    """Run argv to its end: in this process where it is a Python program, else by exec. The exit code."""
    python = argv[0] == "python" and len(argv) > 1
    if python and (not argv[1].startswith("-") or (argv[1] in ("-c", "-m") and len(argv) > 2)):
        return _python(argv[1:])
    try:
        os.execvp(argv[0], argv)
    except (OSError, ValueError) as error:
        print(f"{argv[0]}: {error}", file=sys.stderr)
        return 127


def _python(arguments: list[str]) -> int:
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.path.insert(0, FOLDER)
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
        else:
            sys.argv = arguments
            sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
            main.__dict__["__file__"] = arguments[0]
            with open(arguments[0], "rb") as file:
                exec(compile(file.read(), arguments[0], "exec"), main.__dict__)
        code = 0
    except SystemExit as stop:
        code = _exit_code(stop)
    except BaseException as error:  # as the interpreter does with any program
        sys.excepthook(type(error), error.with_traceback(_without_ours(error.__traceback__)), None)
        code = 1
    return _finish(code)


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return (stop.code or 0) & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def _finish(code: int) -> int:
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # as the interpreter does: the program's own hooks may raise anything
        traceback.print_exc()
        code = code or 120
    return code


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that are ours."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _SELF:
        trace = trace.tb_next
    return trace
