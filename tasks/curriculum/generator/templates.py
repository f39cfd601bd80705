"""Function templates: each draws a small documented function from a wide family.

rng -> Function(name, source, parameter kinds)

The docstring states what the code must do in the same terms as the code, so that a reader can tell which line is
wrong without running it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Literal, NamedTuple

Kind = Literal["items", "int", "text"]


class Function(NamedTuple):
    """A correct function; `kinds` says what its checks pass for each parameter."""

    name: str
    source: str
    kinds: tuple[Kind, ...]


LISTS = ("items", "values", "nums", "data", "xs", "row")
ELEMENTS = ("x", "v", "n", "item", "e")
TOTALS = ("total", "acc", "result", "out", "s")
SCALARS = ("a", "b", "c", "k", "m", "p")
TEXTS = ("text", "word", "line", "name")
NOUNS = ("price", "score", "level", "rate", "size", "count", "depth", "width", "load", "step", "rank", "cost")
VERBS = ("get", "find", "calc", "make", "pick", "scan", "fold", "trim", "join", "mix")


def draw(rng: Random, name: str) -> Function:
    """Draw one correct function called `name`."""
    return rng.choice(TEMPLATES)(rng, name)


def draw_name(rng: Random, taken: set[str]) -> str:
    """A function name that is not taken yet."""
    while (name := f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}") in taken:
        pass
    return name


def _constant(rng: Random) -> int:
    return rng.randint(2, 9)


def _value(rng: Random, x: str) -> str:
    k = _constant(rng)
    return rng.choice((x, f"{x} * {k}", f"{x} + {k}", f"{x} - {k}", f"{k} - {x}"))


def _condition(rng: Random, x: str) -> str:
    k = _constant(rng)
    return rng.choice((f"{x} > {k}", f"{x} < {k}", f"{x} >= {k}", f"{x} <= {k}", f"{x} != {k}", f"{x} % {k} == 0"))


def _write(name: str, parameters: str, doc: str, body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f'def {name}({parameters}):\n    """{doc}"""\n{lines}'


def _sum_if(rng: Random, name: str) -> Function:
    xs, x, total = rng.choice(LISTS), rng.choice(ELEMENTS), rng.choice(TOTALS)
    cond, value, start = _condition(rng, x), _value(rng, x), rng.choice((0, 0, _constant(rng)))
    body = f"{total} = {start}\nfor {x} in {xs}:\n    if {cond}:\n        {total} += {value}\nreturn {total}"
    doc = f"{start} plus the sum of {value} for {x} in {xs} if {cond}"
    return Function(name, _write(name, xs, doc, body), ("items",))


def _count_if(rng: Random, name: str) -> Function:
    xs, x, total = rng.choice(LISTS), rng.choice(ELEMENTS), rng.choice(TOTALS)
    first, join, second, step = _condition(rng, x), rng.choice(("and", "or")), _condition(rng, x), rng.randint(1, 4)
    body = f"{total} = 0\nfor {x} in {xs}:\n    if {first} {join} {second}:\n        {total} += {step}\nreturn {total}"
    return Function(name, _write(name, xs, f"{step} for each {x} in {xs} if {first} {join} {second}", body), ("items",))


def _comprehension(rng: Random, name: str) -> Function:
    xs, x, out = rng.choice(LISTS), rng.choice(ELEMENTS), rng.choice(TOTALS)
    value, cond, end = _value(rng, x), _condition(rng, x), _constant(rng)
    body = f"{out} = [{value} for {x} in {xs} if {cond}]\nreturn {out}[:{end}]"
    return Function(name, _write(name, xs, f"first {end} of {value} for {x} in {xs} if {cond}", body), ("items",))


def _clamp(rng: Random, name: str) -> Function:
    v, low, gap = rng.choice(SCALARS), rng.randint(0, 5), rng.randint(2, 7)
    value, high = _value(rng, v), low + gap
    body = f"if {v} < {low}:\n    return {low}\nif {v} > {high}:\n    return {high}\nreturn {value}"
    doc = f"{low} if {v} < {low}, {high} if {v} > {high}, else {value}"
    return Function(name, _write(name, v, doc, body), ("int",))


def _arithmetic(rng: Random, name: str) -> Function:
    a, b = rng.sample(SCALARS, 2)
    out = rng.choice(TOTALS)
    first, second = _value(rng, a), _value(rng, b)
    join, last, k = rng.choice("+-*"), rng.choice("+-*"), _constant(rng)
    body = f"{out} = {first}\n{out} = {out} {join} ({second})\nreturn {out} {last} {k}"
    doc = f"{first}, then {join} ({second}), then {last} {k}"
    return Function(name, _write(name, f"{a}, {b}", doc, body), ("int", "int"))


def _first_index(rng: Random, name: str) -> Function:
    xs, x, shift, miss = rng.choice(LISTS), rng.choice(ELEMENTS), rng.randint(0, 4), rng.randint(1, 9)
    cond = _condition(rng, x)
    body = f"for i, {x} in enumerate({xs}):\n    if {cond}:\n        return i + {shift}\nreturn -{miss}"
    doc = f"i + {shift} for the first {x} in {xs} if {cond}, else -{miss}"
    return Function(name, _write(name, xs, doc, body), ("items",))


def _piecewise(rng: Random, name: str) -> Function:
    a, b = rng.sample(SCALARS, 2)
    compare, yes, no = rng.choice(("<", ">", "<=", ">=")), _value(rng, a), _value(rng, b)
    k = rng.randint(0, 6)
    body = f"if {a} {compare} {b} + {k}:\n    return {yes}\nreturn {no}"
    doc = f"{yes} if {a} {compare} {b} + {k}, else {no}"
    return Function(name, _write(name, f"{a}, {b}", doc, body), ("int", "int"))


def _zip_sum(rng: Random, name: str) -> Function:
    (xs, ys), (a, b), out = rng.sample(LISTS, 2), rng.sample(SCALARS, 2), rng.choice(TOTALS)
    join, k, cond = rng.choice("+-*"), _constant(rng), _condition(rng, a)
    loop = f"for {a}, {b} in zip({xs}, {ys}):\n    if {cond}:\n        {out}.append({a} {join} {b} + {k})"
    body = f"{out} = []\n{loop}\nreturn {out}"
    doc = f"list of {a} {join} {b} + {k} for {a}, {b} in zip({xs}, {ys}) if {cond}"
    return Function(name, _write(name, f"{xs}, {ys}", doc, body), ("items", "items"))


def _range_fold(rng: Random, name: str) -> Function:
    v, out, low = rng.choice(SCALARS), rng.choice(TOTALS), rng.randint(0, 3)
    start, value, join = rng.randint(0, 5), _value(rng, "i"), rng.choice("+-")
    body = f"{out} = {start}\nfor i in range({low}, {v}):\n    {out} = {out} {join} ({value})\nreturn {out}"
    doc = f"{start}, then {join} ({value}) for i in range({low}, {v})"
    return Function(name, _write(name, v, doc, body), ("int",))


def _text_cut(rng: Random, name: str) -> Function:
    s, cut, times = rng.choice(TEXTS), rng.randint(1, 4), rng.randint(2, 4)
    end = rng.choice(("upper", "lower", "title"))
    mark = rng.choice("-_.!?")
    body = f"head = {s}[:{cut}]\ntail = {s}[{cut}:].{end}()\nreturn head * {times} + '{mark}' + tail"
    doc = f"{s}[:{cut}] * {times} + '{mark}' + {s}[{cut}:].{end}()"
    return Function(name, _write(name, s, doc, body), ("text",))


def _text_count(rng: Random, name: str) -> Function:
    s, total, letter = rng.choice(TEXTS), rng.choice(TOTALS), rng.choice("abcdeost")
    step, other = rng.randint(1, 4), rng.randint(1, 5)
    body = f"{total} = {other}\nfor ch in {s}:\n    if ch == '{letter}':\n        {total} += {step}\nreturn {total}"
    doc = f"{other} plus {step} for each ch in {s} if ch == '{letter}'"
    return Function(name, _write(name, s, doc, body), ("text",))


def _extreme(rng: Random, name: str) -> Function:
    xs, x, best = rng.choice(LISTS), rng.choice(ELEMENTS), rng.choice(TOTALS)
    start, value, compare = rng.randint(-4, 6), _value(rng, x), rng.choice("<>")
    word = "largest" if compare == ">" else "smallest"
    loop = f"for {x} in {xs}:\n    if {value} {compare} {best}:\n        {best} = {value}"
    body = f"{best} = {start}\n{loop}\nreturn {best}"
    return Function(name, _write(name, xs, f"{word} of {start} and {value} for {x} in {xs}", body), ("items",))


TEMPLATES: tuple[Callable[[Random, str], Function], ...] = (
    _sum_if, _count_if, _comprehension, _clamp, _arithmetic, _first_index, _piecewise,
    _zip_sum, _range_fold, _text_cut, _text_count, _extreme,
)  # fmt: skip
