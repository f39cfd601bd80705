"""What a forked process answers: list the tasks of a taskset, play one, score one. Runs in `host` alone.

request (what is to be done, its fields) -> Clerk -> reply, or {"error": a sentence} where the taskset's code failed
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from itertools import islice
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.errors import RolloutError, TaskError, boundary
from verifiers.v1.utils.loaders import taskset_class

from tasks.rollout.environments.verifiers.fit import misfit
from tasks.rollout.environments.verifiers.play import Play, config_of
from tasks.rollout.environments.verifiers.toolbox import Toolbox

_NONE_YET = "the session was not begun"


def warm(taskset: str) -> None:
    """Import what forks will need. Whatever the taskset's import raises ends the process, and is its last word."""
    taskset_class(taskset)


class Clerk:
    """Answers one connection's requests, in their order."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._stack = AsyncExitStack()
        self._play: Play | None = None

    def answer(self, do: str, **fields: Any) -> dict[str, Any]:
        """Do one of `tasks`, `begin`, `call`, `score`, `validate`, and let a session's folder go after the last two."""
        try:
            return self._runner.run(self._do(do, fields))
        except RolloutError as error:
            return {"error": f"{type(error).__name__}: {error}"}

    async def _do(self, do: str, fields: dict[str, Any]) -> dict[str, Any]:
        match do:
            case "tasks":
                return await _tasks(**fields)
            case "begin":
                self._play = await self._stack.enter_async_context(Play.begun(**fields))
                return {}
            case "call":
                return await self._now().call(**fields)
            case "score":
                return await self._ending(self._now().score(**fields))
            case _:
                return await self._ending(self._now().validate())

    def _now(self) -> Play:
        if self._play is None:
            raise TaskError(_NONE_YET)
        return self._play

    async def _ending(self, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        async with self._stack:
            return await work


async def _tasks(taskset: str, config: dict[str, Any], first: int | None) -> dict[str, Any]:
    """The tasks as data, each with what keeps it from being played here, and the tools that all of them have."""
    async with boundary(TaskError, f"taskset {taskset!r}"):
        settings = config_of(taskset, config)
        loaded = taskset_class(taskset)(settings)
        if first is None and not loaded.bounded:
            raise TaskError(f"taskset {taskset!r} is infinite: say how many tasks to take")
        async with Toolbox(loaded, settings) as toolbox:
            found = [_described(taskset, task) for task in islice(loaded, first)]
            return {"tasks": found, "tools": await toolbox.schemas()}


def _described(taskset: str, task: vf.Task) -> dict[str, Any]:
    return {
        "data": task.data.model_dump(mode="json"),
        "name": task.data.id or task.data.name or str(task.data.idx),
        "prompt": task.data.prompt_text,
        "validates": type(task).validate is not vf.Task.validate,
        "misfit": misfit(taskset, task),
    }
