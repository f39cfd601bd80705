"""Mutants of a project that its tests tell, as problems; every one that was dropped is counted with its reason.

project -> mutants in an order drawn by the seed -> tests twice -> half of the telling tests shown, half hidden
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from pydantic import Field

from data_contracts.errors import UserError
from data_contracts.records import Check, Horizon, Limits, Problem, Record
from tasks.curriculum.mutation.hiding import without_tests
from tasks.curriculum.mutation.mutants import Mutant, mutants_of
from tasks.curriculum.mutation.project import RUNNER, Project, Tried, try_tests, with_passing_tests
from tasks.rollout.sandbox import WarmPool

PROMPT = "Some tests of this project fail. Find the fault in the code and mend it; the tests are right."
_CONTROL = "\n\ndef test_that_the_checks_can_fail():\n    raise AssertionError('under control')\n"
SLOWEST = 10.0
"""A mutant's tests may take so many times what the project's own took, and at least the seconds of the terms."""


class Terms(Record):
    """How many mutants are tried and kept, and what a rollout of a problem may use."""

    per_module: int = Field(default=10, ge=1, description="problems of one module, at most")
    tries: int = Field(default=60, ge=1, description="mutants of one module that are tried, at most")
    seed: int = 0
    turns: int = Field(default=20, ge=1)
    tokens: int = Field(default=4096, ge=1)
    seconds: float = Field(default=5.0, gt=0)
    memory_mb: int = Field(default=512, ge=32)


class Mutation(NamedTuple):
    """The problems, how many mutants were tried, and how many were dropped, by reason."""

    problems: list[Problem]
    tried: int
    dropped: Counter[str]


class _Case(NamedTuple):
    module: str
    mutant: Mutant
    source: str


def mutate(
    project: Project, pool: WarmPool, terms: Terms, on_done: Callable[[str, str], None] | None = None
) -> Mutation:
    """Make problems of a project's modules; `on_done` hears of each mutant: its module, and why it was dropped or "".

    Raises UserError when the project's own tests do not pass as they are, or cannot be run.
    """
    own = _own_tests(project, pool, terms)
    project = with_passing_tests(project, own)
    limits = Limits(
        turns=terms.turns,
        tokens=terms.tokens,
        seconds=max(terms.seconds, SLOWEST * own.seconds),
        memory_mb=terms.memory_mb,
    )
    problems: list[Problem] = []
    dropped: Counter[str] = Counter()
    tried = 0
    for module in project.modules:
        kept = 0
        for case, found in _trials(project, module, own, limits, pool, terms):
            tried += 1
            kept += isinstance(found, Problem)
            if isinstance(found, Problem):
                problems.append(found)
            else:
                dropped[found] += 1
            if on_done:
                on_done(case.module, found if isinstance(found, str) else "")
            if kept == terms.per_module:
                break
    return Mutation(problems, tried, dropped)


def _own_tests(project: Project, pool: WarmPool, terms: Terms) -> Tried:
    """The tests of the project as it is; those that do not pass there tell nothing."""
    limits = Limits(seconds=10 * terms.seconds, memory_mb=terms.memory_mb)
    first, second = (try_tests(project, {}, limits, pool) for _ in range(2))
    if fault := first.fault or second.fault:
        raise UserError(f"the tests of {project.name} cannot be run in the sandbox: they {fault}.")
    passed, failed = first.passed & second.passed, first.failed | second.failed
    if len(passed) < 2:
        raise UserError(
            f"{len(passed)} tests of {project.name} pass as it is, and two are needed: they run from its folder, with "
            "its files and the standard library alone."
        )
    return Tried(passed, failed, "", max(first.seconds, second.seconds))


def _trials(
    project: Project, module: str, own: Tried, limits: Limits, pool: WarmPool, terms: Terms
) -> Iterator[tuple[_Case, Problem | str]]:
    """Every mutant of a module that is tried, with its problem or the reason why it is none, a few at a time."""
    cases = _cases(project, module, terms)
    with ThreadPoolExecutor(pool.size, thread_name_prefix="mutants") as threads:
        while batch := list(itertools.islice(cases, 2 * pool.size)):
            results = threads.map(lambda case: _verified(project, case, own, limits, pool, terms), batch)
            yield from zip(batch, results, strict=True)


def _cases(project: Project, module: str, terms: Terms) -> Iterator[_Case]:
    source = project.files[module]
    try:
        mutants = mutants_of(source)
    except SyntaxError as error:
        raise UserError(
            f"{module}:{error.lineno}: it does not parse ({error.msg}): leave it out by --modules."
        ) from error
    random.Random(f"{terms.seed}/{module}").shuffle(mutants)
    for mutant in mutants[: terms.tries]:
        yield _Case(module, mutant, mutant.of(source))


def _verified(project: Project, case: _Case, own: Tried, limits: Limits, pool: WarmPool, terms: Terms) -> Problem | str:
    """The mutant's problem, or why it is dropped."""
    try:
        ast.parse(case.source)
    except SyntaxError:
        return "does not parse"
    changed = {case.module: case.source}
    first = try_tests(project, changed, limits, pool)
    if first.fault:
        return f"its tests {first.fault}"
    telling = own.passed - first.passed
    if not telling:
        return "no test tells it: equivalent, or not covered"
    if telling == own.passed:
        return "every test fails"
    if len(telling) == 1:
        return "one test alone tells it: none to show, or none to hide"
    again = try_tests(project, changed, limits, pool)
    if own.passed - again.passed != telling:
        return "the tests are not deterministic on it"
    return _problem(project, case, own, telling, limits, terms)


def _problem(
    project: Project, case: _Case, own: Tried, telling: frozenset[str], limits: Limits, terms: Terms
) -> Problem:
    """Half of the telling tests are shown, half of the others too; the hidden files hold all of them."""
    rng = random.Random(f"{terms.seed}/{case.module}/{case.mutant.start}/{case.mutant.text!r}")
    hidden = {*_half(telling, rng), *_half(own.passed - telling, rng)}
    shown = without_tests(project.files, hidden)
    whole = {path: project.files[path] for path in {*project.tests, *shown}}
    first, mutant = project.tests[0], case.mutant
    name = f"{project.name}-{case.module.removesuffix('.py').replace('/', '.')}-{mutant.line}"
    return Problem(
        id=f"{name}-{hashlib.sha256(case.source.encode()).hexdigest()[:6]}",
        environment="workspace",
        prompt=PROMPT,
        files=project.with_files({case.module: case.source, **shown}),
        solution={case.module: project.files[case.module]},
        visible=(Check(name="tests", command=project.command()),),
        hidden=(Check(name="all tests", command=project.command()),),
        hidden_files=dict(sorted(whole.items())),
        control={first: project.files[first] + _CONTROL},
        protected=(RUNNER, *sorted(whole)),
        limits=limits,
        horizon=_horizon(project),
        tags=(mutant.kind.replace(" ", "_"),),
    )


def _half(tests: frozenset[str], rng: random.Random) -> list[str]:
    """Half of the tests, drawn; of an odd number the smaller half."""
    return rng.sample(sorted(tests), len(tests) // 2)


def _horizon(project: Project) -> Horizon:
    """By what there is to read: the lines of the code that may hold the fault."""
    lines = sum(project.files[path].count("\n") for path in project.modules)
    return "short" if lines <= 150 else "medium" if lines <= 600 else "long"
