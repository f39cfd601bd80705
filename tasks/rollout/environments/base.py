"""What every environment offers an agent: messages to start from, tools to call, files that result."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from data_contracts.records import ToolCall


class ToolResult(NamedTuple):
    """What a tool call came back with. `failed`: the agent's own mistake; `done`: the session ends."""

    text: str
    failed: bool = False
    done: bool = False


class Session(Protocol):
    """One agent's hold on one problem. `call` blocks and may run in a thread, one call at a time."""

    files: dict[str, str]
    visible: tuple[int, int] | None
    """(passed, total) of the visible checks when they last ran."""

    def messages(self) -> list[dict[str, Any]]: ...

    def tools(self) -> list[dict[str, Any]]: ...

    def call(self, call: ToolCall) -> ToolResult: ...
