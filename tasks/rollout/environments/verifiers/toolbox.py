"""A taskset's tools, served in this process: the package would start a server for each.

Toolset methods -> MCP schemas -> call -> text, with the rollout's state read before and written after
"""

from __future__ import annotations

import functools
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, Self

import verifiers.v1 as vf
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from verifiers.v1.errors import ToolsetError, boundary


class Answer(NamedTuple):
    """What a tool said; `failed`: it raised, or its arguments did not fit."""

    text: str
    failed: bool


class Toolbox:
    """The tools of a taskset and its tasks under the names that the package gives them. Enter it to use it.

    Without a trace (and its task's data) the tools can be listed, not called.
    """

    def __init__(self, taskset: type[vf.Taskset] | vf.Taskset, config: Any, trace: vf.Trace | None = None) -> None:
        self._trace = trace
        self._shared: list[vf.Toolset] = taskset.toolsets(config)
        self._own: list[vf.Toolset] = taskset.task_type().toolsets(config.task)
        self._servers = [(toolset, _server(toolset)) for toolset in (*self._shared, *self._own)]
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._trace is not None:
            for toolset, _ in self._servers:
                await self._start(toolset, self._trace)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def schemas(self) -> list[dict[str, Any]]:
        """The tools in OpenAI's form."""
        return [
            {"type": "function", "function": {"name": full, "description": text, "parameters": parameters}}
            for full, _, _, text, parameters in await self._tools()
        ]

    async def call(self, name: str, arguments: dict[str, Any]) -> Answer:
        """Run one tool; an unknown name raises ToolsetError."""
        found = {full: (server, raw) for full, server, raw, _, _ in await self._tools()}
        if name not in found:
            raise ToolsetError(f"the taskset has no tool {name!r} any more: import the problems again")
        server, raw = found[name]
        async with boundary(ToolsetError, f"tool {name}"):
            try:
                result = await server.call_tool(raw, arguments)
            except ToolError as error:
                return Answer(str(error), True)
            if not isinstance(result, CallToolResult):
                raise TypeError("it asks its caller back, which is not offered here")
        return Answer("\n".join(_text(block) for block in result.content), bool(result.is_error))

    async def _tools(self) -> list[tuple[str, MCPServer, str, str, dict[str, Any]]]:
        """Full name, server, name there, description and parameters of each tool."""
        found = []
        for toolset, server in self._servers:
            prefix = f"{toolset.server_name}_" if toolset.server_name else ""
            for tool in await server.list_tools():
                found.append((prefix + tool.name, server, tool.name, tool.description or "", tool.input_schema))
        return found

    async def _start(self, toolset: vf.Toolset, trace: vf.Trace) -> None:
        """Have the toolset ready as its own process would: set up, and bound to the rollout's state."""
        async with boundary(ToolsetError, f"toolset {type(toolset).__name__}"):
            # The package's own channel to the state is HTTP between two processes; 0.4 offers no other way in.
            toolset._pull_state = functools.partial(_pull, toolset, trace)
            toolset._push_state = functools.partial(_push, toolset, trace)
            await self._stack.enter_async_context(toolset._exit_stack)
            await toolset.setup()
            if toolset in self._own:
                await toolset.setup_task(trace.task.data)


def _server(toolset: vf.Toolset) -> MCPServer:
    if toolset.config.url:
        raise ToolsetError(f"toolset {type(toolset).__name__} is a server elsewhere ({toolset.config.url})")
    server = MCPServer(toolset.server_name or type(toolset).__name__)
    toolset.register(server)
    return server


async def _pull(toolset: vf.Toolset, trace: vf.Trace) -> Any:
    """The rollout's state as the toolset types it."""
    return toolset._state_adapter.validate_json(trace.state.model_dump_json())


async def _push(toolset: vf.Toolset, trace: vf.Trace, before: bytes) -> None:
    """Replace the rollout's state where a call changed it."""
    after = toolset._state_adapter.dump_json(toolset.state)
    if after != before:
        trace.state = type(trace.state).model_validate_json(after)


def _text(block: Any) -> str:
    return block.text if block.type == "text" else str(block)
