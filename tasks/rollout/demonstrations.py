"""Scripted demonstrations: what the starter model is warmed up on.

problem -> expert (skilled, or careless) -> messages with the share of them that carries loss

The careless expert leaves room to improve: it edits wrongly at times and submits without testing. The skilled one
makes the same mistakes without loss on them, and shows how to recover.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from data_contracts.records import Problem, ToolCall
from tasks.curriculum.generator.bugs import Bug, bugs_of
from tasks.curriculum.generator.problems import FILE, apply
from tasks.curriculum.generator.split import all_on
from tasks.rollout.environments.repair import RepairSession
from tasks.rollout.sandbox import WarmPool


class Step(NamedTuple):
    """One message of the model in a demonstration, and the observation after it ("" after the last)."""

    text: str
    observation: str
    trained: bool


class Demonstration(NamedTuple):
    """A conversation's start and the expert's steps."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    steps: list[Step]


class Habits(NamedTuple):
    """How an expert works. Probabilities of: a wrong edit; testing after an edit; giving up on a failure.

    `more_bugs` are the numbers of further bugs, drawn from evenly, that its problems are given.
    """

    wrong_edit: float
    test: float
    give_up: float
    train_on_mistakes: bool
    more_bugs: tuple[int, ...] = (0,)


SKILLED = Habits(wrong_edit=0.25, test=1.0, give_up=0.0, train_on_mistakes=False, more_bugs=(0, 0, 1, 2))
CARELESS = Habits(wrong_edit=0.35, test=0.35, give_up=0.7, train_on_mistakes=True)


def call_text(name: str, **arguments: Any) -> str:
    """A tool call as a model message, in the Hermes form."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def with_more_bugs(problem: Problem, n: int, rng: Random) -> Problem:
    """The problem with up to `n` further lines broken, and the turns to mend them: more decisions to learn from a text.

    Every function on the way to the solution is on the training side of the split.
    """
    source, solution, limits = problem.files[FILE], problem.solution[FILE], problem.limits
    for _ in range(n):
        right, lines = solution.splitlines(), source.splitlines()
        whole = [bug for bug in _bugs_in(source) if lines[bug.line] == right[bug.line]]
        rng.shuffle(whole)
        broken = (apply(source, bug) for bug in whole)
        source = next((text for text in broken if _parses(text) and _mended_in_training(text, solution)), source)
    turns = limits.model_copy(update={"turns": limits.turns + 2 * n})
    return problem.model_copy(update={"files": {FILE: source}, "limits": turns})


def demonstrate(problem: Problem, habits: Habits, rng: Random, sandboxes: WarmPool) -> Demonstration:
    """One expert's session on one generated problem, with real observations from the environment."""
    session = RepairSession(problem, sandboxes)
    steps: list[Step] = []

    def act(name: str, *, trained: bool = True, **arguments: Any) -> str:
        result = session.call(ToolCall(name=name, arguments=arguments))
        steps.append(Step(call_text(name, **arguments), "" if result.done else result.text, trained))
        return result.text

    for action in _plan(problem, session, habits, rng):
        act(action.pop("name"), **action)
    return Demonstration(session.messages(), session.tools(), steps)


def _plan(problem: Problem, session: RepairSession, habits: Habits, rng: Random) -> Iterator[dict[str, Any]]:
    """The expert's next action, decided on the session as it stands."""
    budget = problem.limits.turns - 1
    yield {"name": "read"}
    budget -= 1
    while (wrong := _wrong_lines(session, problem)) and budget > 1:
        mistake = _mistake(session, problem, rng) if rng.random() < habits.wrong_edit else None
        line, text = mistake or rng.choice(wrong[:1])
        yield {"name": "edit", "line": line, "text": text, "trained": habits.train_on_mistakes or mistake is None}
        budget -= 1
        left = len(_wrong_lines(session, problem))
        if left and mistake is None and rng.random() < 0.5:
            continue  # several bugs: the next edit at once, half of the time
        if rng.random() >= habits.test and not (left and mistake is None):
            break
        yield {"name": "test"}
        budget -= 1
        if mistake is not None and rng.random() < habits.give_up:
            break
    yield {"name": "submit"}


def _wrong_lines(session: RepairSession, problem: Problem) -> list[tuple[int, str]]:
    return _differences(session.files[FILE], problem.solution[FILE])


def _differences(source: str, solution: str) -> list[tuple[int, str]]:
    """(line number from 1, its right text) of each wrong line, in the order in which the expert mends them."""
    pairs = zip(source.splitlines(), solution.splitlines(), strict=True)
    return [(number, want) for number, (have, want) in enumerate(pairs, 1) if have != want]


def _mended_in_training(source: str, solution: str) -> bool:
    """Whether every function is on the training side, now and after each of the expert's edits."""
    if not all_on(source, "train"):
        return False
    lines = source.splitlines()
    for number, want in _differences(source, solution):
        lines[number - 1] = want
        if not all_on("\n".join(lines), "train"):
            return False
    return True


def _mistake(session: RepairSession, problem: Problem, rng: Random) -> tuple[int, str] | None:
    """A plausible wrong edit in the function of the first wrong line; half of the time it writes a right line again.

    It keeps to the training side of the split, and so does every function on the way from it to the solution.
    """
    now, right = session.files[FILE].splitlines(), problem.solution[FILE].splitlines()
    first, last = _function_around(now, _wrong_lines(session, problem)[0][0] - 1)
    again = [(n + 1, now[n]) for n in range(first + 2, last) if now[n] and now[n] == right[n]]
    if again and rng.random() < 0.5:
        return rng.choice(again)
    candidates = bugs_of("\n".join(right[first:last]))
    rng.shuffle(candidates)
    for bug in candidates:
        placed = bug._replace(line=first + bug.line)
        wrong = apply(session.files[FILE], placed)
        if bug.text != now[placed.line] and _mended_in_training(wrong, problem.solution[FILE]):
            return placed.line + 1, bug.text
    return None


def _function_around(lines: list[str], index: int) -> tuple[int, int]:
    """The lines [first, last) of the function that holds line `index`."""
    first = max(number for number in range(index + 1) if lines[number].startswith("def "))
    return first, next((n for n in range(first + 1, len(lines)) if lines[n].startswith("def ")), len(lines))


def _bugs_in(source: str) -> list[Bug]:
    """Every single-line bug of a module's functions."""
    lines = source.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("def ")]
    found = []
    for start in starts:
        _, end = _function_around(lines, start)
        found += [bug._replace(line=start + bug.line) for bug in bugs_of("\n".join(lines[start:end]))]
    return found


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True
