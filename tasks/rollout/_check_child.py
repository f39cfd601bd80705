"""Runs the steps of checks in a fork that holds the agent's code, and reports each step over an append-only pipe.

steps -> import the files' modules -> evaluate step after step -> one signed record each -> the judge (checks.py)

What this process says is evidence, not a verdict. It never knows what an `assert A == <literal>` expects: it reports A.
For what only it can decide (a statement ran to its end; a class's own equality) the records carry a keyed digest over
their number and content, and an audit hook, which cannot be removed, reports any reach for frames, the garbage
collector's lists, ctypes or /proc before that reach can succeed; the judge then believes no such claim.
No classes here (`object.__subclasses__` would show them) and no lookup of a patchable name once agents' code has run.
Standard library only.
"""

from __future__ import annotations

import builtins
import operator
import sys
from _blake2 import blake2b
from _thread import get_ident
from collections.abc import Callable
from importlib import import_module
from os import stat, write
from sys import _getframe
from types import TracebackType
from typing import Any

from tasks.rollout._check_modules import RAW, is_patch_in_place, remember, restore
from tasks.rollout._check_plain import compared, distance, plain
from tasks.rollout._warm_io import FOLDER

_BUILTINS = dict(vars(builtins))
globals()["__builtins__"] = _BUILTINS  # functions below keep these, whatever an agent patches

_FRAMES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
_REACHES = frozenset(
    {
        "gc.get_objects",
        "gc.get_referents",
        "gc.get_referrers",
        "sys._current_exceptions",
        "sys._current_frames",
        "sys._getframe",
        "sys.monitoring.register_callback",
        "sys.setprofile",
        "sys.settrace",
    }
)
_REFUSED: dict[str, type[Exception]] = {  # these do without what they reach for when told so, and nothing is reported
    "asyncio.coroutines:_format_coroutine": AttributeError,
    "collections:namedtuple": ValueError,
    "enum:EnumType._create_": ValueError,
    "typing:_caller": ValueError,
}
_OWN = globals()
_PROC = stat("/proc").st_dev if sys.platform == "linux" else -1

Send = Callable[[dict[str, Any]], None]
Error = dict[str, Any]
_refused: dict[int, type[Exception]] = {}


def know_refused() -> None:
    """Find the functions of `_REFUSED` in the modules imported so far, before any agent's code ran."""
    for place, error in _REFUSED.items():
        name, _, path = place.partition(":")
        if name in sys.modules:
            _refused[id(operator.attrgetter(path + ".__code__")(sys.modules[name]))] = error


def run_checks(request: dict[str, Any], fd: int) -> None:
    """Run `{"secret", "modules", "checks": [{"uses", "imports", "steps"}]}`; report on `fd` the import, then each step.

    A check stops at the first step that raises, and the next one goes on.
    """
    send = _reporter(fd, bytes.fromhex(request.pop("secret")))
    uses, imports = ({name for check in request["checks"] for name in check[key]} for key in ("uses", "imports"))
    remember(uses, imports, request["modules"])
    sys.path.insert(0, FOLDER)
    sys.addaudithook(_hook(send))
    names: dict[str, Any] = {"__builtins__": dict(vars(builtins)), "__name__": "__check__"}
    _, error = _attempt(_load, request["modules"], names)
    send({"error": error})
    for name in _BUILTINS:
        names.pop(name, None)  # an agent's `sorted` or `len` is not what a check means
    for check in request["checks"] if error is None else ():
        space = names | _GIVEN | {"__builtins__": dict(_BUILTINS), "__name__": "__check__"}
        for step in check["steps"]:
            for name in check["uses"]:
                restore(name)
            record, error = _attempt(_step, step, space)
            send({"error": error} if record is None else record)
            if error is not None:
                break


def signature(secret: bytes, number: int, text: str) -> str:
    """The keyed digest of a record: valid at one place of the sequence, for one content."""
    return blake2b(b"%d:%s" % (number, text.encode()), key=secret, digest_size=16).hexdigest()


def _reporter(fd: int, secret: bytes) -> Send:
    number = 0

    def send(record: dict[str, Any]) -> None:
        nonlocal number
        text = ascii(record)
        line = f"{signature(secret, number, text)} {text}\n".encode()
        number += 1
        while line:
            line = line[write(fd, line) :]

    return send


def _hook(send: Send) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that reports each reach for the runner's own state, in the thread that made it."""
    inside: int | None = None

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal inside
        if inside == get_ident():
            return
        if is_patch_in_place(event, arguments):
            raise TypeError("a check's own functions are not to be changed")
        if not _reaches(event, arguments):
            return
        inside = get_ident()
        try:
            frame = _getframe(1)
            if id(frame.f_code) in _refused:
                raise _refused[id(frame.f_code)]("frames are not to be had in a check")
            if frame.f_globals is not _OWN:
                send({"reach": event})
        finally:
            inside = None

    return hook


def _reaches(event: str, arguments: tuple[Any, ...]) -> bool:
    if event == "object.__getattr__":
        return arguments[1] in _FRAMES
    if event == "import":
        return type(arguments[0]) is not str or arguments[0] in RAW
    if event == "open":
        return _is_process_file(arguments[0])
    return event in _REACHES


def _is_process_file(path: object) -> bool:
    if type(path) is int:
        return False
    if type(path) is not str and type(path) is not bytes:
        return True
    try:
        return stat(path).st_dev == _PROC
    except (OSError, ValueError):
        return False


def _attempt(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Error | None]:
    try:
        return function(*arguments), None
    except BaseException as error:  # an agent's code may raise anything, SystemExit included: all of it is a failure
        return None, _described(error)


def _described(error: BaseException) -> Error:
    kind = type(error).__name__
    file: str
    line: int | None
    file, line = _place(error.__traceback__)
    text = error.msg if isinstance(error, SyntaxError) else _text(str, error)
    if isinstance(error, SyntaxError) and type(error.filename) is str:
        file, line = error.filename, error.lineno
    clean = {"type": kind, "text": text, "file": file}
    record: Error = {key: value[:400] if type(value) is str else "" for key, value in clean.items()}
    record["file"] = record["file"].removeprefix(FOLDER + "/")
    record["line"] = line if type(line) is int else 0
    return record


def _place(trace: TracebackType | None) -> tuple[str, int]:
    place = ("", 0)
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(FOLDER):
            place = (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return place


def _text(function: Callable[[Any], str], value: object) -> str:
    try:
        text = function(value)
    except BaseException as error:  # an agent's own __repr__ or __str__
        return f"<{type(error).__name__} in {function.__name__}>"
    return str.__str__(text)[:400]


def _load(modules: list[str], space: dict[str, Any]) -> None:
    for name in modules:
        # not `import *`, which would hide _private functions and whatever __all__ leaves out
        names = vars(import_module(name))
        space.update((key, value) for key, value in names.items() if not (key.startswith("__") and key.endswith("__")))


def _step(step: dict[str, Any], space: dict[str, Any]) -> dict[str, Any]:
    if step["left"] is None:
        exec(compile(step["source"], "<check>", "exec"), space)
        return {"error": None}
    left = eval(compile(step["left"], "<check>", "eval"), space)
    record: dict[str, Any] = {"error": None, "right": None, "truth": False}
    if step["right"] is not None:
        right = eval(compile(step["right"], "<check>", "eval"), space)
        record["right"] = plain(right)
        record["truth"] = bool(compared([step["operator"]], left, right))
    elif not step["hidden"]:
        record["truth"] = bool(left)
    return record | {"left": plain(left), "shown": _text(repr, left)}


def _failed(source: str, got: object) -> str:
    return f"assert {source} : got {_text(repr, got)}"


_GIVEN = {"_failed_": _failed, "_compared_": compared, "_distance_": distance}
"""What `_check_plan` writes into a check's code."""
