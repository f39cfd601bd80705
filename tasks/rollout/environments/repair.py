"""The environment `repair`: a small Python module with bugs, and the tools read, edit, test, submit.

read -> edit -> test (really runs the visible checks) -> ... -> submit
"""

from __future__ import annotations

from typing import Any

from data_contracts.records import Problem, ToolCall
from tasks.rollout.checks import run_checks
from tasks.rollout.environments.base import ToolResult
from tasks.rollout.sandbox import WarmPool


def _tool(name: str, description: str, required: tuple[str, ...] = (), **properties: dict[str, str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_PATH = {"type": "string", "description": "file; may be left out where the problem has one file"}
TOOLS: list[dict[str, Any]] = [
    _tool("read", "Show a file with line numbers.", path=_PATH),
    _tool(
        "edit",
        "Replace a line, or the lines from `line` to `end_line`, by `text`.",
        ("line", "text"),
        path=_PATH,
        line={"type": "integer", "description": "first line to replace, from 1"},
        end_line={"type": "integer", "description": "last line to replace; default: `line`"},
        text={"type": "string", "description": "the new lines, indentation included"},
    ),
    _tool("test", "Run the visible checks and show the first failure."),
    _tool("submit", "Hand the files in; ends the session."),
]
_TYPES: dict[str, type] = {"path": str, "text": str, "line": int, "end_line": int}


class RepairSession:
    """One agent's hold on one repair problem; the files live here, each test run gets a copy in a sandbox."""

    def __init__(self, problem: Problem, sandboxes: WarmPool) -> None:
        self.problem = problem
        self.files = dict(problem.files)
        self.visible: tuple[int, int] | None = None
        self._sandboxes = sandboxes

    def messages(self) -> list[dict[str, Any]]:
        """The conversation's start: the problem's prompt."""
        return [{"role": "user", "content": self.problem.prompt}]

    def tools(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools, in OpenAI's form."""
        return TOOLS

    def call(self, call: ToolCall) -> ToolResult:
        """Run one call; a wrong one comes back as an error observation and changes nothing."""
        error = _argument_error(call)
        if error:
            return ToolResult(f"error: {error}", failed=True)
        match call.name:
            case "read":
                return self._read(**call.arguments)
            case "edit":
                return self._edit(**call.arguments)
            case "test":
                return self._test()
            case _:
                return ToolResult("submitted", done=True)

    def _read(self, path: str | None = None) -> ToolResult:
        name, error = self._resolve(path)
        if error:
            return ToolResult(error, failed=True)
        lines = self.files[name].splitlines()
        return ToolResult("\n".join(f"{number} {line}" for number, line in enumerate(lines, 1)))

    def _edit(self, line: int, text: str, end_line: int | None = None, path: str | None = None) -> ToolResult:
        name, error = self._resolve(path)
        if error:
            return ToolResult(error, failed=True)
        lines = self.files[name].splitlines()
        last = line if end_line is None else end_line
        if not 1 <= line <= last <= len(lines):
            return ToolResult(f"error: no lines {line} to {last}: {name} has {len(lines)}", failed=True)
        lines[line - 1 : last] = text.splitlines()
        self.files[name] = "\n".join(lines) + "\n"
        return ToolResult("ok")

    def _test(self) -> ToolResult:
        report = run_checks(self.files, self.problem.visible, self.problem.limits, self._sandboxes)
        self.visible = (report.passed, report.total)
        summary = f"{report.passed} of {report.total} pass"
        return ToolResult(summary if not report.failures else f"{summary}\n{report.failures[0].message}")

    def _resolve(self, path: str | None) -> tuple[str, str]:
        if path is None and len(self.files) == 1:
            return next(iter(self.files)), ""
        if path in self.files:
            return path, ""
        return "", f"error: no file {path!r}: there are {', '.join(sorted(self.files))}"


def _argument_error(call: ToolCall) -> str:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    if call.name not in schemas:
        return f"no tool {call.name!r}: there are {', '.join(schemas)}"
    schema = schemas[call.name]
    missing = [name for name in schema["required"] if name not in call.arguments]
    unknown = [name for name in call.arguments if name not in schema["properties"]]
    if missing or unknown:
        return f"{call.name} takes {', '.join(schema['properties']) or 'no arguments'}"
    for name, value in call.arguments.items():
        if not isinstance(value, _TYPES[name]) or isinstance(value, bool):
            return f"{call.name}: {name} is {schema['properties'][name]['type']}"
    return ""
