"""Keeps what the modules that checks use hold before an agent's code runs, and puts it back before each step.

names that checks use -> import, copies of modules and their classes -> agent's code runs -> restore(name)

The module keeps its own builtins, as `_check_child` does. Standard library only.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from types import FunctionType
from typing import Any

_BUILTINS = dict(vars(builtins))
globals()["__builtins__"] = _BUILTINS  # functions below keep these, whatever an agent patches

_IN_PLACE = frozenset({"__code__", "__defaults__", "__kwdefaults__"})
_MUTABLE, _IMMUTABLE = 1 << 9, 1 << 8
"""Flags of a class: made at run time; its attributes cannot be set."""
_FRAMELESS: dict[str, dict[str, Any]] = {  # honest logs and tracebacks go without callers' lines: they need frames
    "logging": {"_srcfile": None},
    "traceback": {"_walk_tb_with_full_positions": lambda _: iter(())},
}
_LOADED = sys.modules  # an agent may put another dict in its place
RAW = frozenset({"ctypes", "_ctypes", "_testcapi", "_testinternalcapi", "_xxsubinterpreters", "_interpreters"})
"""Modules that reach the memory of the process: whoever imports one is to be seen doing so."""
_modules: dict[str, list[tuple[str, Any, dict[str, Any], dict[str, Any]]]] = {}
_classes: dict[str, list[tuple[type, dict[str, Any]]]] = {}
_parts: dict[str, dict[str, Any]] = {}
"""By name, a module and those below it."""
_namespaces: set[int] = set()


def know_loaded() -> None:
    """Note the modules loaded so far: in process 1, as a fork would have to copy each page that this touches."""
    for name, module in _LOADED.items():
        if type(vars(module)) is dict:  # typing puts classes into sys.modules
            _namespaces.add(id(vars(module)))
            for end in (at for at in range(len(name) + 1) if name[at : at + 1] in (".", "")):
                _parts.setdefault(name[:end], {})[name] = module


def remember(uses: Iterable[str], imports: Iterable[str], own: Iterable[str]) -> None:
    """Keep the modules of `uses`, those of `imports` once imported; `own` names the problem's, which go before others.

    To be called before an agent's code is on the path.
    """
    own = {name.partition(".")[0] for name in own}
    for top in own:
        for name in _parts.get(top, ()):
            _LOADED.pop(name, None)
    _import({name for name in imports if name.partition(".")[0] not in own})
    for name, values in _FRAMELESS.items():
        if name in _LOADED:
            vars(_LOADED[name]).update(values)
    for use in uses:
        if use in _parts and use not in ("sys", "__main__") and use.partition(".")[0] not in own:
            _modules[use] = [(name, part, vars(part), dict(vars(part))) for name, part in _parts[use].items()]
            held = {id(value): value for *_, kept in _modules[use] for value in kept.values()}
            _classes[use] = [(value, dict(vars(value))) for value in held.values() if _can_be_patched(value)]


def _import(names: Iterable[str]) -> None:
    missing = [name for name in names if name not in _LOADED]
    for name in missing:
        with suppress(ImportError):  # the check says so itself
            import_module(name)
    if missing:
        for name in RAW:
            _LOADED.pop(name, None)
        know_loaded()


def restore(name: str) -> None:
    """Put back what `remember` kept of a module; the classes that it holds, too."""
    for place, module, live, kept in _modules.get(name, ()):
        live.update(kept)
        _LOADED[place] = module
    for owner, attributes in _classes.get(name, ()):
        live_attributes = vars(owner)
        for key, value in attributes.items():
            if live_attributes.get(key, _modules) is not value:
                type.__setattr__(owner, key, value)
        for key in [key for key in live_attributes if key not in attributes]:
            type.__delattr__(owner, key)


def is_patch_in_place(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether an audit event changes a function that was there before an agent's code: no copy would put that back."""
    if event not in ("object.__setattr__", "object.__delattr__") or arguments[1] not in _IN_PLACE:
        return False
    return type(arguments[0]) is FunctionType and id(arguments[0].__globals__) in _namespaces


def _can_be_patched(value: object) -> bool:
    return isinstance(value, type) and bool(value.__flags__ & _MUTABLE) and not value.__flags__ & _IMMUTABLE
