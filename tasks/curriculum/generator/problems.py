"""From functions to whole problems, every one verified to fail before and to pass after its repair.

draw functions -> put bugs in -> visible and hidden checks -> Problem
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from data_contracts.records import Check, Horizon, Limits, Problem
from tasks.curriculum.generator.bugs import Bug, bugs_of
from tasks.curriculum.generator.split import Side, normalise, side_of
from tasks.curriculum.generator.templates import Function, Kind, draw, draw_name

FILE = "main.py"
PROMPT = "Tests fail. Fix main.py."
VISIBLE, HIDDEN = 3, 6
"""Checks per function."""


class Size(NamedTuple):
    """How large a problem of one horizon is."""

    functions: int
    bugs: int
    turns: int
    tokens: int


SIZES: dict[Horizon, Size] = {
    "short": Size(functions=1, bugs=1, turns=8, tokens=200),
    "medium": Size(functions=2, bugs=2, turns=12, tokens=330),
    "long": Size(functions=3, bugs=3, turns=18, tokens=500),
}
WORDS = ("sea otter", "books", "toasted", "a cat", "Odd", "tea", "", "best coast", "decoded", "x", "ottoman")


class Broken(NamedTuple):
    """A function with its bug and the checks that tell them apart."""

    function: Function
    bug: Bug | None
    visible: list[str]
    hidden: list[str]


def generate(seed: int, split: Side, horizon: Horizon, n: int) -> list[Problem]:
    """`n` distinct problems of one horizon, from a seed, each function on its side of the split."""
    problems: list[Problem] = []
    seen: set[str] = set()
    for problem in stream(seed, split, horizon) if n > 0 else ():
        key = normalise(problem.files[FILE])
        if key not in seen:
            seen.add(key)
            problems.append(problem)
            if len(problems) == n:
                break
    return problems


def stream(seed: int, split: Side, horizon: Horizon) -> Iterator[Problem]:
    """An endless stream of problems; the same arguments give the same problems in the same order."""
    rng = Random(f"{seed}/{split}/{horizon}")
    number = 0
    while True:
        problem = _draw_problem(rng, split, horizon, f"{split}-{horizon}-{seed}-{number:05d}")
        number += 1
        yield problem


def _draw_problem(rng: Random, split: Side, horizon: Horizon, problem_id: str) -> Problem:
    size = SIZES[horizon]
    names: set[str] = set()
    broken = []
    for index in range(size.functions):
        name = draw_name(rng, names)
        names.add(name)
        broken.append(_draw_broken(rng, split, name, buggy=index < size.bugs))
    rng.shuffle(broken)
    return Problem(
        id=problem_id,
        prompt=PROMPT,
        files={FILE: "\n".join(_with_bug(b) for b in broken)},
        solution={FILE: "\n".join(b.function.source for b in broken)},
        visible=tuple(Check(name=f"visible-{i}", code=c) for i, c in enumerate(c for b in broken for c in b.visible)),
        hidden=tuple(Check(name=f"hidden-{i}", code=c) for i, c in enumerate(c for b in broken for c in b.hidden)),
        limits=Limits(turns=size.turns, tokens=size.tokens),
        horizon=horizon,
        tags=tuple(sorted({b.bug.kind for b in broken if b.bug})),
    )


def _with_bug(broken: Broken) -> str:
    if broken.bug is None:
        return broken.function.source
    return apply(broken.function.source, broken.bug)


def apply(source: str, bug: Bug) -> str:
    """The source with the bug put in."""
    lines = source.splitlines()
    lines[bug.line] = bug.text
    return "\n".join(lines) + "\n"


def _draw_broken(rng: Random, split: Side, name: str, *, buggy: bool) -> Broken:
    while True:
        function = draw(rng, name)
        if side_of(function.source) != split:
            continue
        bug = _draw_bug(rng, split, function.source) if buggy else None
        if buggy and bug is None:
            continue
        checks = _draw_checks(rng, function, bug)
        if checks is not None:
            return Broken(function, bug, *checks)


def _draw_bug(rng: Random, split: Side, source: str) -> Bug | None:
    bugs = bugs_of(source)
    rng.shuffle(bugs)
    for bug in bugs:
        with suppress(SyntaxError):  # a mutant that does not parse is not plausible: the next one
            if side_of(apply(source, bug)) == split:
                return bug
    return None


def _draw_checks(rng: Random, function: Function, bug: Bug | None) -> tuple[list[str], list[str]] | None:
    """Distinct checks whose first VISIBLE and whose rest both tell the bug; None if the draw cannot tell."""
    right = _load(function.source, function.name)
    wrong = _load(apply(function.source, bug), function.name) if bug else None
    calls: dict[str, tuple[Any, bool]] = {}
    for _ in range(40):
        arguments = [_argument(rng, kind) for kind in function.kinds]
        call = f"{function.name}({', '.join(map(repr, arguments))})"
        value = _outcome(right, arguments)
        got = _outcome(wrong, arguments) if wrong else value
        if isinstance(got, TimeoutError):
            return None  # an endless loop would cost its whole time limit at every test
        if not isinstance(value, Exception):
            calls[call] = (value, wrong is not None and _differs(got, value))
    if len(calls) < VISIBLE + HIDDEN:
        return None
    checks = [(f"assert {call} == {value!r}", tells) for call, (value, tells) in calls.items() if len(repr(value)) < 40]
    visible, hidden = checks[:VISIBLE], checks[VISIBLE : VISIBLE + HIDDEN]
    if len(hidden) < HIDDEN or (bug and not (any(t for _, t in visible) and any(t for _, t in hidden))):
        return None
    return [c for c, _ in visible], [c for c, _ in hidden]


def _argument(rng: Random, kind: Kind) -> Any:
    if kind == "items":
        return [rng.randint(-3, 12) for _ in range(rng.randint(1, 5))]
    return rng.choice(WORDS) if kind == "text" else rng.randint(-3, 14)


def _load(source: str, name: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(compile(source, FILE, "exec"), namespace)  # our own template, never an agent's text
    return namespace[name]


def _outcome(function: Any, arguments: list[Any]) -> Any:
    copies = [list(a) if isinstance(a, list) else a for a in arguments]
    try:
        return _bounded(function, copies)
    except (ArithmeticError, LookupError, TypeError, NameError, AttributeError, ValueError, TimeoutError) as error:
        return error


def _bounded(function: Any, arguments: list[Any]) -> Any:
    """Call with a bound on the lines executed: a mutant may loop for ever."""
    left = 2_000

    def count(frame: Any, event: str, arg: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise TimeoutError("too many lines")
        return count

    previous = sys.gettrace()
    sys.settrace(count)
    try:
        return function(*arguments)
    finally:
        sys.settrace(previous)


def _differs(got: Any, want: Any) -> bool:
    return isinstance(got, Exception) or got != want or type(got) is not type(want)
