"""Tasksets written for the package `verifiers`, and their problems."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.records import Limits, Problem
from tasks.rollout.environments import ENVIRONMENTS
from tasks.rollout.environments.verifiers import Verifiers
from tasks.rollout.environments.verifiers.importing import Terms, import_taskset

TASKSETS = Path(__file__).with_name("tasksets")
MOVES = [("bolts", 2), ("nuts", -3), ("nuts", 1), ("pins", -4)]
SOLUTIONS = {
    f"list-{number}": [
        {"calls": [{"name": "move", "arguments": {"name": name, "amount": amount}}]},
        {"content": "done"},
    ]
    for number, (name, amount) in enumerate(MOVES)
}
TERMS = Terms(Limits(turns=5, tokens=60, seconds=10.0, memory_mb=512))


@pytest.fixture(scope="session")
def verifiers() -> Iterator[Verifiers]:
    """The environment that problems name, with the tests' tasksets where modules are found."""
    if importlib.util.find_spec("verifiers") is None:
        pytest.skip("the package verifiers is not installed: pip install -e '.[dev]'")
    environment = ENVIRONMENTS["verifiers"]
    assert isinstance(environment, Verifiers)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TASKSETS))
        yield environment
        environment.close()


@pytest.fixture(scope="session")
def stockroom(verifiers: Verifiers) -> list[Problem]:
    return import_taskset(verifiers, "stockroom", TERMS, solutions=SOLUTIONS)


@pytest.fixture(scope="session")
def sums(verifiers: Verifiers) -> list[Problem]:
    return import_taskset(verifiers, "sums", TERMS, config={"count": 2})


@pytest.fixture(scope="session")
def odd(verifiers: Verifiers) -> Callable[..., Problem]:
    def make(kind: str, *, seconds: float = 10.0, **options: Any) -> Problem:
        terms = TERMS._replace(limits=Limits(seconds=seconds, memory_mb=512))
        return import_taskset(verifiers, "odd", terms, config={"kinds": [kind]}, **options)[0]

    return make
