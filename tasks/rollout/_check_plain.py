"""Plain data: how a value is written down and read back, and how a check compares in the fork that holds agents' code.

value -> nested literals -> value      (operators, values) -> bool, by plain data where one side is that

An agent's object may equal everything; so where one side of a comparison is plain data, the other has to be so too.
The module keeps its own builtins, as `_check_child` does. Standard library only.
"""

from __future__ import annotations

import builtins
import collections
import datetime
import decimal
import fractions
import operator
from collections.abc import Callable, Sequence
from typing import Any

_BUILTINS = dict(vars(builtins))
globals()["__builtins__"] = _BUILTINS  # functions below keep these, whatever an agent patches

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Is": operator.is_,
    "IsNot": operator.is_not,
    "In": lambda left, right: left in right,
    "NotIn": lambda left, right: left not in right,
}
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.items()))
_DICTS: tuple[type, ...] = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
_SEQUENCES: tuple[type, ...] = (list, tuple, set, frozenset, collections.deque, type({}.values()), *_VIEWS)
_ITERATORS: tuple[type, ...] = (type(_ for _ in ()), map, filter, zip, enumerate, reversed)
_CONTAINERS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": frozenset}
_SCALARS: dict[str, Callable[[str], Any]] = {"int": lambda text: int(text, 16), "float": float, "complex": complex}
_VALUES = frozenset(
    {
        datetime.date,
        datetime.datetime,
        datetime.time,
        datetime.timedelta,
        decimal.Decimal,
        fractions.Fraction,
        range,
        type,
        type(...),
        type(NotImplemented),
    }
)
"""Types that are no plain data, but no agent's either: they may decide how they compare."""


def encode(value: Any) -> Any:
    """Plain data as nested literals; a class's own instance only where it compares as its plain base does.

    None, bool, str, bytes, finite floats and short ints stand for themselves, everything else is ["tag", content].
    """
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is bytes:
        return value
    if kind in _DICTS or kind.__eq__ is dict.__eq__:
        return ["dict", [[encode(key), encode(content)] for key, content in dict.items(value)]]
    if kind in _VIEWS or kind.__eq__ is set.__eq__ or kind.__eq__ is frozenset.__eq__:
        return ["set", [encode(item) for item in value]]
    return _encode_scalar(value, kind.__eq__)


def _encode_scalar(value: Any, equal: Any) -> Any:
    if equal is int.__eq__:
        number = int.__index__(value)
        return number if -(2**63) < number < 2**63 else ["int", hex(number)]
    if equal is float.__eq__:
        return ["float", float.__repr__(value)]
    if equal is str.__eq__:
        return str.__str__(value)
    if equal is list.__eq__:
        return ["list", [encode(item) for item in list.__iter__(value)]]
    if equal is tuple.__eq__:
        return ["tuple", [encode(item) for item in tuple.__iter__(value)]]
    if equal is complex.__eq__:
        return ["complex", complex.__repr__(value)]
    if equal is bytearray.__eq__:
        return bytes(value)
    raise TypeError("no plain data")


def decode(value: Any) -> Any:
    """The plain data that `encode` wrote; TypeError or ValueError where it did not."""
    if not isinstance(value, list):
        return value
    kind, content = value
    if kind == "dict":
        return {decode(key): decode(item) for key, item in content}
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](decode(item) for item in content)
    return _SCALARS[kind](content)


def plain(value: object) -> list[Any] | None:
    """[the encoded value], or None where it is no plain data."""
    try:
        return [encode(value)]
    except BaseException:  # an agent's class may raise anything from anywhere
        return None


def compared(operators: Sequence[str], *values: Any) -> bool:
    """Whether a chain such as `a < b == c` holds; `operators` by their ast names."""
    return all(_compare(*link) for link in zip(operators, values, values[1:], strict=False))


def _compare(name: str, left: Any, right: Any) -> Any:
    if name in ("In", "NotIn") and type(right) in _ITERATORS:
        right = list(right)
    one, other = plain(left), plain(right)
    if name in ("Is", "IsNot"):
        return OPERATORS[name](left, right)
    if one is not None and other is not None:
        return OPERATORS[name](decode(*one), decode(*other))
    if _known(left) == _known(right):
        return OPERATORS[name](left, right)
    if name in ("Eq", "NotEq", "In", "NotIn"):
        return name.startswith("Not")
    raise TypeError("an object of the code's own is compared with data")


def distance(left: Any, right: Any) -> Any:
    """`abs(left - right)`; TypeError where one side is an object of the code's own and the other is not."""
    if _known(left) != _known(right):
        raise TypeError("the distance of an object of the code's own from data")
    return abs(left - right)


def _known(value: Any) -> bool:
    """Whether nothing in `value` is of an agent's own class, so that none of it can lie about itself."""
    kind = type(value)
    try:
        if kind in _VALUES:
            return True
        if kind in _SEQUENCES:
            return all(_known(item) for item in kind.__iter__(value))
        if kind in _DICTS:
            return all(_known(key) and _known(item) for key, item in dict.items(value))
    except RecursionError:
        return False
    return plain(value) is not None
