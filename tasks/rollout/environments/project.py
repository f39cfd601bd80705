"""One agent's hold on a project: list, search, read, edit, run, submit.

call -> checked against the tool's schema -> the files here, or a copy of them in a sandbox -> ToolResult
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from data_contracts.records import Problem, ToolCall
from tasks.rollout.environments.base import FileSession, ToolResult
from tasks.rollout.environments.handed_in import in_the_way, refusal
from tasks.rollout.environments.tools import call_error, tool
from tasks.rollout.sandbox import SandboxResult, WarmPool

SHOWN_LINES = 200
SHOWN_HITS = 50
SHOWN_CHARACTERS = 4000
"""What one observation shows at most; it says so where it leaves something out."""
_SEARCH = f"""
import os, re, sys
pattern = re.compile(sys.argv[1])
hits = 0
for folder, inner, names in os.walk("."):
    inner.sort()
    for path in sorted(os.path.join(folder, name)[2:] for name in names):
        for number, line in enumerate(open(path, encoding="utf-8", errors="replace", newline="\\n"), 1):
            if pattern.search(line):
                hits += 1
                if hits <= {SHOWN_HITS}:
                    print(f"{{path}}:{{number}}: {{line.rstrip()[:200]}}")
print(f"{{hits}} lines match" + (", the first {SHOWN_HITS} are shown" if hits > {SHOWN_HITS} else ""))
"""
"""Runs in the sandbox: a pattern of the agent's may take for ever."""


def _run_tool(problem: Problem) -> dict[str, Any]:
    programs = f" Programs: {', '.join(problem.programs)}." if problem.programs else ""
    own = " Without `command`: the project's own check." if problem.visible else ""
    said = f"Run a program on a copy of the files, without a shell; changes it makes are not kept.{programs}{own}"
    command = {"type": "string", "description": "program and arguments, such as: python -m unittest"}
    return tool("run", said, () if problem.visible else ("command",), command=command)


_PATH = {"type": "string", "description": "file, relative to the project"}
TOOLS: list[dict[str, Any]] = [
    tool("list", "List the files with their number of lines."),
    tool(
        "search",
        "Find lines that match a regular expression.",
        ("pattern",),
        pattern={"type": "string", "description": "what to look for"},
        literal={"type": "boolean", "description": "take the pattern as plain text; default: false"},
    ),
    tool(
        "read",
        f"Show a file, or a part of it, with line numbers; at most {SHOWN_LINES} lines.",
        ("path",),
        path=_PATH,
        line={"type": "integer", "description": "first line, from 1"},
        end_line={"type": "integer", "description": "last line"},
    ),
    tool(
        "edit",
        "Replace `old`, or the lines from `line` to `end_line`, by `text`; with neither: create a file.",
        ("path", "text"),
        path=_PATH,
        text={"type": "string", "description": "the new text, indentation included"},
        old={"type": "string", "minLength": 1, "description": "exact text to replace; it occurs once"},
        line={"type": "integer", "description": "first line to replace, from 1"},
        end_line={"type": "integer", "description": "last line to replace; default: `line`"},
    ),
]
_SUBMIT = tool("submit", "Hand the files in; ends the session.")


class ProjectSession(FileSession):
    """The files live here; whatever runs gets a copy of them in a sandbox."""

    def __init__(self, problem: Problem, sandboxes: WarmPool) -> None:
        super().__init__(problem, sandboxes)
        self._tools = [*TOOLS, _run_tool(problem), _SUBMIT]

    def tools(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools, in OpenAI's form."""
        return self._tools

    def call(self, call: ToolCall) -> ToolResult:
        """Run one call; a wrong one comes back as an error observation and changes nothing."""
        if error := call_error(self._tools, call):
            return _error(error)
        match call.name:
            case "list":
                return self._list()
            case "search":
                return self._search(**call.arguments)
            case "read":
                return self._read(**call.arguments)
            case "edit":
                return self._edit(**call.arguments)
            case "run":
                return self._run(**call.arguments)
            case _:
                return ToolResult("submitted", done=True)

    def _list(self) -> ToolResult:
        rows = (f"{path} {len(_lines(text))}" for path, text in sorted(self.files.items()))
        return ToolResult("\n".join(rows))

    def _search(self, pattern: str, literal: bool = False) -> ToolResult:
        sought = re.escape(pattern) if literal else pattern
        result = self._sandboxes.run(["python", "-c", _SEARCH, sought], self.files, self.problem.limits)
        if result.ended != "exit" or result.exit_code:
            said = result.stderr.strip().splitlines()
            return _error(f"the search failed: {said[-1] if said else result.ended}")
        return ToolResult(_cut(result.stdout.strip()))

    def _read(self, path: str, line: int = 1, end_line: int | None = None) -> ToolResult:
        if path not in self.files:
            return _error(f"no file {path!r}: `list` shows what there is")
        lines = _lines(self.files[path])
        last = len(lines) if end_line is None else min(end_line, len(lines))
        if not 1 <= line <= max(last, 1):
            return _error(f"no lines {line} to {last}: {path} has {len(lines)}")
        stop = min(last, line + SHOWN_LINES - 1)
        shown = [f"{number} {lines[number - 1]}" for number in range(line, stop + 1)]
        rest = [f"... {len(lines) - stop} more lines"] if stop < last else []
        return ToolResult(_cut("\n".join([*shown, *rest])))

    def _edit(
        self, path: str, text: str, old: str | None = None, line: int | None = None, end_line: int | None = None
    ) -> ToolResult:
        if reason := refusal(self.problem, path):
            return _error(reason)
        if old is not None and (line is not None or end_line is not None):
            return _error("give `old` or `line`, not both")
        if end_line is not None and line is None:
            return _error("give `line` as well as `end_line`")
        if old is None and line is None:
            return self._create(path, text)
        if path not in self.files:
            return _error(f"no file {path!r}: `list` shows what there is")
        if old is not None:
            return self._replace(path, old, text)
        assert line is not None
        return self._replace_lines(path, line, line if end_line is None else end_line, text)

    def _create(self, path: str, text: str) -> ToolResult:
        if path in self.files:
            return _error(f"{path} exists: say what to replace, by `old` or by `line`")
        if other := in_the_way(path, self.files):
            return _error(f"{path} is in the way of {other}")
        self.files[path] = _ended(text)
        return ToolResult("created")

    def _replace(self, path: str, old: str, text: str) -> ToolResult:
        count = self.files[path].count(old)
        if count != 1:
            return _error(f"`old` occurs {count} times in {path}: give text that occurs once")
        self.files[path] = self.files[path].replace(old, text)
        return ToolResult("ok")

    def _replace_lines(self, path: str, line: int, last: int, text: str) -> ToolResult:
        lines = _lines(self.files[path])
        if not 1 <= line <= last <= len(lines):
            return _error(f"no lines {line} to {last}: {path} has {len(lines)}")
        lines[line - 1 : last] = _lines(text)
        self.files[path] = "\n".join(lines) + "\n"
        return ToolResult("ok")

    def _run(self, command: str | None = None) -> ToolResult:
        if command is None:
            return self._check()
        try:
            argv = shlex.split(command)
        except ValueError as error:
            return _error(f"the command cannot be read: {error}")
        if not argv or "\0" in command:
            return _error("the command is empty or holds a NUL")
        if self.problem.programs and argv[0] not in self.problem.programs:
            return _error(f"{argv[0]} may not be run: there are {', '.join(self.problem.programs)}")
        return ToolResult(_shown(self._sandboxes.run(argv, self.files, self.problem.limits)))

    def _check(self) -> ToolResult:
        """The visible commands; what the first that fails wrote is shown."""
        checks = self.problem.visible
        results = [self._sandboxes.run(check.command, self.files, self.problem.limits) for check in checks]
        failed = [result for result in results if result.ended != "exit" or result.exit_code]
        self.visible = (len(checks) - len(failed), len(checks))
        summary = f"{self.visible[0]} of {self.visible[1]} pass"
        return ToolResult(f"{summary}\n{_shown(failed[0])}" if failed else summary)


def _error(text: str) -> ToolResult:
    return ToolResult(f"error: {text}", failed=True)


def _shown(result: SandboxResult) -> str:
    """How a program ended and what it wrote."""
    how = f"exit code {result.exit_code}" if result.ended == "exit" else f"ended by {result.ended}"
    written = [part.rstrip("\n") for part in (result.stdout, result.stderr) if part.strip()]
    return _cut("\n".join([how, *written]))


def _cut(text: str) -> str:
    """The text, or its beginning and end where it is long: an error stands at the end."""
    if len(text) <= SHOWN_CHARACTERS:
        return text
    head, tail = SHOWN_CHARACTERS // 4, SHOWN_CHARACTERS * 3 // 4
    return f"{text[:head]}\n... {len(text) - head - tail} characters left out ...\n{text[-tail:]}"


def _lines(text: str) -> list[str]:
    """Lines as editors count them; `splitlines` would also break at form feeds and such, and lose them."""
    return text.removesuffix("\n").split("\n") if text else []


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"
