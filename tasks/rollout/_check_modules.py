"""Keeps what the modules that checks use hold before an agent's code runs, and puts it back before each step.

names that checks use -> import, copies of modules and their classes -> agent's code runs -> restore(name)

The module keeps its own builtins, as `_check_child` does. Standard library only.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable
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
_modules: dict[str, list[tuple[str, Any, dict[str, Any], dict[str, Any]]]] = {}
_classes: dict[str, list[tuple[type, dict[str, Any]]]] = {}
_namespaces: set[int] = set()


def remember(uses: Iterable[str], imports: Iterable[str], own: Iterable[str]) -> None:
    """Keep the modules of `uses`, those of `imports` once imported; `own` names the problem's, which go before others.

    To be called before an agent's code is on the path.
    """
    own = {name.partition(".")[0] for name in own}
    for name in [name for name in _LOADED if name.partition(".")[0] in own]:
        del _LOADED[name]
    for name in {name for name in imports if name.partition(".")[0] not in own}:
        try:
            import_module(name)
        except ImportError:  # the check says so itself
            continue
    for name, values in _FRAMELESS.items():
        if name in _LOADED:
            vars(_LOADED[name]).update(values)
    loaded = {name: module for name, module in _LOADED.items() if type(vars(module)) is dict}
    _namespaces.update(id(vars(module)) for module in loaded.values())
    for use in {use for use in uses if use in loaded} - {"sys", "__main__"}:
        part = [name for name in loaded if name == use or name.startswith(use + ".")]
        _modules[use] = [(name, loaded[name], vars(_LOADED[name]), dict(vars(_LOADED[name]))) for name in part]
        values = [value for *_, kept in _modules[use] for value in kept.values()]
        _classes[use] = [(value, dict(vars(value))) for value in values if _can_be_patched(value)]


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
