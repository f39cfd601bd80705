"""One task under way: set up, its tools called, scored. Runs in a forked process, by the package's own code.

origin -> begun -> call ... call -> what is left (state, info) -> begun elsewhere, that put back -> score
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import verifiers.v1 as vf
from pydantic import TypeAdapter
from verifiers.v1.errors import TaskError, boundary
from verifiers.v1.runtimes import Runtime, provision_runtime
from verifiers.v1.session import call_hook, hook_boundary
from verifiers.v1.state import state_cls
from verifiers.v1.utils.decorators import invoke
from verifiers.v1.utils.loaders import taskset_class, taskset_config_type

from tasks.rollout.environments.verifiers.toolbox import Toolbox

Messages = list[dict[str, Any]]
_MESSAGES: TypeAdapter[list[vf.Message]] = TypeAdapter(vf.Messages)


def config_of(taskset: str, config: dict[str, Any]) -> Any:
    """The taskset's settings, typed as it declares them."""
    return taskset_config_type(taskset).model_validate({**config, "id": taskset})


class Play:
    """A task, the folder it was set up in, its trace and its tools."""

    def __init__(self, task: vf.Task, runtime: Runtime, trace: vf.Trace, toolbox: Toolbox) -> None:
        self._task, self._runtime, self._trace, self._toolbox = task, runtime, trace, toolbox

    @classmethod
    @asynccontextmanager
    async def begun(cls, taskset: str, config: dict[str, Any], data: dict[str, Any]) -> AsyncIterator[Play]:
        """The task of that data, set up in a fresh folder."""
        async with boundary(TaskError, f"task of {taskset!r}"):
            settings, kind = config_of(taskset, config), taskset_class(taskset).task_type()
            task = kind(kind.data_type().model_validate(data), settings.task)
        async with provision_runtime(vf.SubprocessConfig(), env=task.runtime_env()) as runtime:
            trace = _trace(task)
            async with boundary(TaskError, "setup"):
                await invoke(task.setup, {"trace": trace, "runtime": runtime})
            async with Toolbox(taskset_class(taskset), settings, trace) as toolbox:
                yield cls(task, runtime, trace, toolbox)

    async def call(self, id: str, name: str, arguments: dict[str, Any], transcript: Messages) -> dict[str, Any]:
        """Run a tool after the messages so far; its answer as a message, whether it failed or a stop of the task's ends
        the session, and what is left: the state and the trace's notes as JSON."""
        text, failed = await self._toolbox.call(name, arguments)
        message = {"role": "tool", "tool_call_id": id, "content": text, "name": name}
        self._tell([*transcript, message])
        left = {"state": self._trace.state.model_dump(mode="json"), "info": self._trace.info}
        return {"message": message, "failed": failed, "done": await self._stopped(), "left": left}

    async def score(self, transcript: Messages, left: dict[str, Any] | None) -> dict[str, Any]:
        """The task's rewards by name, weighed, for these messages and what is left of the session that had them."""
        async with boundary(TaskError, "what was handed in"):
            if left is not None:
                self._trace.state = type(self._trace.state).model_validate(left["state"])
                self._trace.info = left["info"]
            self._tell(transcript)
        self._trace.stop("agent_completed")
        async with boundary(TaskError, "finalize"):
            await invoke(self._task.finalize, {"trace": self._trace, "runtime": self._runtime})
        await self._task.score(self._trace, self._runtime)
        return {"rewards": {name: reward.value for name, reward in self._trace.rewards.items() if reward}}

    async def validate(self) -> dict[str, Any]:
        """What the task's own check of its ground truth says: True, False, or None for "there is none"."""
        async with boundary(TaskError, "validate"):
            return {"valid": await self._task.validate(self._runtime)}

    async def _stopped(self) -> bool:
        """Whether one of the task's stops ends the session here."""
        async with boundary(TaskError, "stop"):
            for stop in self._task.hooks("stop"):
                if await call_hook(stop, {vf.Trace: self._trace}):
                    return True
        return False

    def _tell(self, transcript: Messages) -> None:
        """Make the prompt and these messages the trace's."""
        messages = [*_prompt(self._task.data), *_MESSAGES.validate_python(transcript)]
        first_said = len(messages) - len(transcript)
        self._trace.nodes = [
            vf.MessageNode(
                parent=number - 1 if number else None,
                message=message,
                sampled=number >= first_said and message.role == "assistant",
            )
            for number, message in enumerate(messages)
        ]


def stops_at_traces(task: vf.Task) -> bool:
    """Whether every stop of the task looks at the trace alone."""
    return all(hook_boundary(stop, allow_trace=True) is vf.Trace for stop in task.hooks("stop"))


def _trace(task: vf.Task) -> vf.Trace:
    record = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    return vf.Trace(task=record, state=state_cls(type(task))(), agent=vf.AgentInfo(config=vf.AgentConfig()))


def _prompt(data: vf.TaskData) -> list[vf.Message]:
    system = [vf.SystemMessage(content=data.system_prompt)] if data.system_prompt else []
    prompt = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt or [])
    return [*system, *prompt]
