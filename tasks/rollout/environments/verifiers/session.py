"""One agent's hold on a `verifiers` task: what was said is kept here, the tools are called in a fork.

hear(message), call(tool) -> fork -> observation; handed in: the transcript, and what the tools left
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from data_contracts.records import Origin, Problem, Record, ToolCall
from tasks.rollout.environments.base import ToolResult
from tasks.rollout.environments.tools import call_error
from tasks.rollout.environments.verifiers.client import Line, TasksetError

TRANSCRIPT = "transcript.json"
"""Handed in: the messages after the prompt, in OpenAI's form."""
LEFT = "left.json"
"""Handed in where a tool was called: the task's state and its trace's notes."""

Message = dict[str, Any]


class Said(Record):
    """A message of the agent's, as a reference solution gives it: words, calls or both."""

    content: str = ""
    calls: tuple[ToolCall, ...] = ()


class PlayError(OSError):
    """The taskset's code around a tool failed: the session cannot go on, and it is not the agent's fault."""


class VerifiersSession:
    """A session of a problem with an `origin`. Its fork starts at the first call and ends with this object."""

    def __init__(self, problem: Problem, origin: Origin, connect: Callable[[], Line]) -> None:
        self.files = dict(problem.files)
        self.visible: tuple[int, int] | None = None
        self._problem, self._origin, self._connect = problem, origin, connect
        self._transcript: list[Message] = []
        self._line: Line | None = None

    def messages(self) -> list[Message]:
        """The task's system prompt, if it has one, and its prompt."""
        data = self._origin.data
        system = [{"role": "system", "content": data["system_prompt"]}] if data.get("system_prompt") else []
        prompt = data["prompt"]
        if isinstance(prompt, str):
            return [*system, {"role": "user", "content": prompt}]
        return [*system, *({"role": message["role"], "content": message["content"]} for message in prompt)]

    def tools(self) -> list[dict[str, Any]]:
        """JSON schemas of the task's tools, as they were when it was imported."""
        return list(self._origin.tools)

    def hear(self, content: str, calls: Sequence[ToolCall]) -> bool:
        """Note a message; one without a call is the answer and ends the session."""
        message: Message = {"role": "assistant", "content": content}
        if calls:
            asked = [_asked(f"call-{len(self._transcript)}-{number}", call) for number, call in enumerate(calls)]
            message["tool_calls"] = asked
        self._note(message)
        return not calls

    def call(self, call: ToolCall) -> ToolResult:
        """Run a tool of a message that was heard. One that does not fit, or raises, is the agent's fault.

        Raises HostError where the fork is gone, PlayError, and TimeoutError after `limits.seconds`.
        """
        identity = self._waiting()
        if error := call_error(self.tools(), call):
            text = f"error: {error}"
            self._note({"role": "tool", "tool_call_id": identity, "content": text, "name": call.name})
            return ToolResult(text, failed=True)
        reply = self._ask("call", id=identity, **call.model_dump(), transcript=self._transcript)
        self._note(reply["message"])
        self.files[LEFT] = json.dumps(reply["left"])
        return ToolResult(reply["message"]["content"], reply["failed"], reply["done"])

    def _ask(self, do: str, **fields: Any) -> Any:
        limits = self._problem.limits
        try:
            if self._line is None:
                self._line = begun(self._origin, self._problem, self._connect)
            return self._line.ask(do, limits.seconds, limits.memory_mb, **fields)
        except TasksetError as error:
            raise PlayError(f"taskset {self._origin.taskset!r}: {error}") from error

    def _note(self, message: Message) -> None:
        self._transcript.append(message)
        self.files[TRANSCRIPT] = json.dumps(self._transcript)

    def _waiting(self) -> str:
        """The first call of those heard that has no answer yet."""
        answered = {message["tool_call_id"] for message in self._transcript if message["role"] == "tool"}
        asked = [call["id"] for message in self._transcript for call in message.get("tool_calls", ())]
        return next(identity for identity in asked if identity not in answered)


def begun(origin: Origin, problem: Problem, connect: Callable[[], Line]) -> Line:
    """A fork in which the task was set up afresh; raises HostError, TasksetError, TimeoutError."""
    line, limits = connect(), problem.limits
    task = {"taskset": origin.taskset, "config": origin.config, "data": origin.data}
    line.ask("begin", limits.seconds, limits.memory_mb, **task)
    return line


def _asked(identity: str, call: ToolCall) -> Message:
    return {"id": identity, "type": "function", "name": call.name, "arguments": json.dumps(call.arguments)}
