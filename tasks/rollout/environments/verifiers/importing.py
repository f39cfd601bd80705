"""Problems from a taskset of the package `verifiers`.

taskset id, its settings, reference solutions -> its tasks, loaded in a process of its own -> problems with an origin
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from data_contracts.errors import UserError
from data_contracts.records import Check, Horizon, Limits, Origin, Problem
from tasks.rollout.environments.verifiers import TRANSCRIPT, TURNS, VALIDATE, Verifiers
from tasks.rollout.environments.verifiers.client import HostError, TasksetError

LOAD_SECONDS = 3600.0
"""A taskset may load its tasks for so long, and take so many MiB for it."""
LOAD_MB = 2**16

Turns = list[dict[str, Any]]
"""A reference solution: the agent's messages, `{"content": ..., "calls": [{"name": ..., "arguments": {...}}]}`."""


class Terms(NamedTuple):
    """What the package leaves to its caller: what a rollout may use, and the least reward of a solved task."""

    limits: Limits
    horizon: Horizon = "short"
    solved: float = 1.0


def import_taskset(
    environment: Verifiers,
    taskset: str,
    terms: Terms,
    *,
    config: Mapping[str, Any] = MappingProxyType({}),
    solutions: Mapping[str, Turns] = MappingProxyType({}),
    first: int | None = None,
) -> list[Problem]:
    """A problem for each task, in their order; `solutions` by the task's id, name or number.

    UserError where the taskset cannot be loaded, or a task of it cannot be played here or has no reference.
    """
    if missing := environment.missing():
        raise UserError(f"{missing}.")
    try:
        line = environment.host(taskset).connect()
        found = line.ask("tasks", LOAD_SECONDS, LOAD_MB, taskset=taskset, config=dict(config), first=first)
    except (HostError, TasksetError, TimeoutError) as error:
        raise UserError(f"taskset {taskset!r}: {error}") from error
    if unknown := sorted(set(solutions) - {task["name"] for task in found["tasks"]}):
        raise UserError(
            f"taskset {taskset!r} has no task {unknown[0]!r}, for which a solution is given: mend its name."
        )
    whole = Origin(taskset=taskset, config=dict(config), data={}, tools=found["tools"])
    return [
        _problem(whole.model_copy(update={"data": task["data"]}), task, solutions, terms) for task in found["tasks"]
    ]


def _problem(origin: Origin, task: Mapping[str, Any], solutions: Mapping[str, Turns], terms: Terms) -> Problem:
    name = task["name"]
    if task["misfit"]:
        raise UserError(f"taskset {origin.taskset!r}, task {name!r} needs {task['misfit']}: that is not offered here.")
    if name in solutions:
        solution = {TURNS: json.dumps(solutions[name])}
    elif task["validates"]:
        solution = {VALIDATE: "Task.validate answers for a reference solution"}
    else:
        raise UserError(
            f"taskset {origin.taskset!r}, task {name!r} has nothing to show that it can be solved: write the task's "
            "`validate`, or a line for it in the file of --solutions."
        )
    return Problem(
        id=re.sub(r"[^\w.\-]", "-", f"{origin.taskset}-{name}"),
        environment="verifiers",
        prompt=task["prompt"],
        files={TRANSCRIPT: "[]"},
        hidden=(Check(name="reward", reward=terms.solved),),
        solution=solution,
        origin=origin,
        limits=terms.limits,
        horizon=terms.horizon,
    )
