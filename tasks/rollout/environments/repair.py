"""The environment `repair`: a small Python module with bugs, and the tools read, edit, test, submit.

read -> edit -> test (really runs the visible checks) -> ... -> submit
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_contracts.records import WORKSPACE_ONLY, Check, Problem, ToolCall
from tasks.rollout.checks import run_checks
from tasks.rollout.environments.base import (
    CheckSide,
    Failure,
    FileSession,
    ToolResult,
    Trial,
    Verified,
    other_kind,
)
from tasks.rollout.environments.tools import call_error, tool
from tasks.rollout.sandbox import WarmPool

_PATH = {"type": "string", "description": "file; may be left out where the problem has one file"}
TOOLS: list[dict[str, Any]] = [
    tool("read", "Show a file with line numbers.", path=_PATH),
    tool(
        "edit",
        "Replace a line, or the lines from `line` to `end_line`, by `text`.",
        ("line", "text"),
        path=_PATH,
        line={"type": "integer", "description": "first line to replace, from 1"},
        end_line={"type": "integer", "description": "last line to replace; default: `line`"},
        text={"type": "string", "description": "the new lines, indentation included"},
    ),
    tool("test", "Run the visible checks and show the first failure."),
    tool("submit", "Hand the files in; ends the session."),
]


class Repair:
    """Python modules with bugs; the checks are Python code, judged outside of the process that holds the agent's."""

    must_tell: tuple[CheckSide, ...] = ("hidden", "visible")

    def objection(self, problem: Problem) -> str:
        """Both kinds of checks are there, each of them code, and nothing is given that only `workspace` reads."""
        if not problem.visible:
            return "visible: empty: give at least one"
        for check in (*problem.visible, *problem.hidden):
            if objection := other_kind(check, "code"):
                return objection
        if given := [name for name in WORKSPACE_ONLY if getattr(problem, name)]:
            return f"{given[0]} means nothing here: leave it out, or write environment = 'workspace'"
        return ""

    def open(self, problem: Problem, sandboxes: WarmPool) -> RepairSession:
        return RepairSession(problem, sandboxes)

    def verify(self, problem: Problem, files: Mapping[str, str], pool: Any) -> Verified:
        """The hidden checks on the problem's own files; files that were added are dropped, lost ones come back."""
        final = {path: files.get(path, original) for path, original in problem.files.items()}
        report = run_checks(final, problem.hidden, problem.limits, pool)
        return Verified(report.passed / report.total, report.passed, report.total)

    def trial(self, problem: Problem, files: Mapping[str, str], pool: Any) -> Trial:
        """All checks in one go, renamed by position, since a visible and a hidden one may share a name."""
        places: list[tuple[CheckSide, int]] = [("visible", index) for index in range(len(problem.visible))]
        places += [("hidden", index) for index in range(len(problem.hidden))]
        both = (*problem.visible, *problem.hidden)
        checks = [Check(name=str(number), code=check.code) for number, check in enumerate(both)]
        report = run_checks(files, checks, problem.limits, pool)
        return Trial(report.ended, tuple(Failure(*places[int(f.name)], f.message) for f in report.failures))


class RepairSession(FileSession):
    """One agent's hold on one repair problem; the files live here, each test run gets a copy in a sandbox."""

    def tools(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools, in OpenAI's form."""
        return TOOLS

    def call(self, call: ToolCall) -> ToolResult:
        """Run one call; a wrong one comes back as an error observation and changes nothing."""
        error = call_error(TOOLS, call)
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
