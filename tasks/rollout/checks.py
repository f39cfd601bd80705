"""Runs a problem's checks on files an agent wrote, and judges them where the agent's code is not.

files, checks -> one fork a check in a sandbox -> signed records -> judged here -> CheckReport

Threat model: the agent's code may do anything inside its fork: exit early, patch builtins and modules, print, replace
descriptors, return objects that equal everything, walk frames. `assert A == <literal>` cannot be forged: the fork is
never told the literal, only plain data is compared, and here. Other statements count when the fork says they ran to
their end; that record is signed with a key that only a reach seen by an audit hook could find, and no such claim is
believed after one. Not prevented: an agent's class decides about equality with its own kind (`assert f() == Point(1)`),
and a patched class of the standard library does so for a check that uses it. A check that did not report is failed.
"""

from __future__ import annotations

import ast
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from data_contracts.records import Check, Limits
from tasks.rollout._check_child import OPERATORS, signature
from tasks.rollout._check_plan import Step, modules_of, plan
from tasks.rollout.sandbox import Ended, WarmPool

WIDTH = 80
"""Characters of a failure's message."""


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """A check that failed, and why in at most 80 characters: `assert clamp(5, 1, 3) == 3 : got 5`."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Verdict over a list of checks; `ended` is "exit", or how the first check that was cut short ended."""

    passed: int
    total: int
    failures: list[CheckFailure] = field(default_factory=list)
    ended: Ended = "exit"


def run_checks(
    files: Mapping[str, str], checks: Sequence[Check], limits: Limits, pool: WarmPool, *, stop_at_first: bool = False
) -> CheckReport:
    """Run each check in a fork of its own, in which the files are modules and star-imported.

    `limits.seconds` is for the whole list; checks it leaves no time for fail. With `stop_at_first` the checks after
    the first failure are not run: neither passed nor among the failures. Raises SandboxError.
    """
    used, passed, ended = 0.0, 0, "exit"
    failures: list[CheckFailure] = []
    for check in checks:
        if used >= limits.seconds:
            message, how = f"not run: the {limits.seconds:g} s for all checks are used up", "timeout"
        else:
            message, how, seconds = _run_one(dict(files), check, limits, limits.seconds - used, pool)
            used += seconds
        if ended == "exit":
            ended = how
        if not message:
            passed += 1
            continue
        failures.append(CheckFailure(check.name, message))
        if stop_at_first:
            break
    return CheckReport(passed, len(checks), failures, ended)  # type: ignore[arg-type]


def _run_one(
    files: dict[str, str], check: Check, limits: Limits, seconds: float, pool: WarmPool
) -> tuple[str, str, float]:
    """(failure message or "", how it ended, seconds used)"""
    try:
        steps = plan(check.code)
    except SyntaxError as error:
        return _joined("the check's own code", f": SyntaxError: {error.msg} (line {error.lineno})"), "exit", 0.0
    secret = secrets.token_bytes(32)
    sent = {"secret": secret.hex(), "modules": modules_of(files), "steps": [step.sent() for step in steps]}
    request = {"kind": "check", "files": files, "check": sent, "memory_mb": limits.memory_mb}
    reply = pool.call(request | {"seconds": seconds})
    message = _judge(steps, list(_records(reply["report"], secret)), _cut_short(reply, limits))
    ended = "memory" if "MemoryError" in message and reply["ended"] == "exit" else reply["ended"]
    return message, ended, reply["seconds"]


def _cut_short(reply: dict[str, Any], limits: Limits) -> str:
    if reply["ended"] == "timeout":
        return f"timed out after {limits.seconds:g} s"
    if reply["ended"] == "memory":
        return "MemoryError: out of memory"
    if reply["ended"] != "exit":
        return reply["note"]
    return f"the process ended early with exit code {reply['exit_code']}"


def _records(report: str, secret: bytes) -> Iterator[dict[str, Any]]:
    """The records that carry the right signature for their place; anything else on the pipe is not ours."""
    number = 0
    for line in report.split("\n"):
        mark, _, text = line.partition(" ")
        if secrets.compare_digest(mark.encode(), signature(secret, number, text).encode()):
            number += 1
            yield ast.literal_eval(text)


def _judge(steps: Sequence[Step], records: list[dict[str, Any]], cut_short: str) -> str:
    """The failure's message, or "" where every step is accounted for and holds."""
    waiting = [Step(shown="import", source=""), *steps]
    reached = ""
    for record in records:
        if "reach" in record:
            reached = record["reach"]
            continue
        if len(waiting) == 0:
            return "the process reported more than was asked"
        step = waiting.pop(0)
        if record["error"] is not None:
            return _raised(step, record["error"])
        if message := _failure(step, record, reached):
            return message
    return _joined(waiting[0].shown, f": {cut_short}") if waiting else ""


def _failure(step: Step, record: dict[str, Any], reached: str) -> str:
    if step.left is None:
        return "" if not reached or step.source == "" else _disbelieved(step, reached)
    left, right = record["left"], record["right"]
    try:
        got = _show(decode(left)) if left is not None else _scrubbed(record["shown"])
        if step.operator is not None and step.right is None:
            holds = left is not None and OPERATORS[step.operator](decode(left), step.expected)
        elif step.operator is not None and left is not None and right is not None and "Is" not in step.operator:
            holds = OPERATORS[step.operator](decode(left), decode(right))
        elif step.operator is None and left is not None:
            holds = bool(decode(left)) is not step.negated
        elif reached:
            return _disbelieved(step, reached)
        else:
            holds = record["truth"] is not step.negated
    except (TypeError, ValueError, RecursionError) as error:
        return _raised(step, {"type": type(error).__name__, "text": str(error), "file": "", "line": 0})
    return "" if holds else _joined(f"assert {step.shown}", f" : got {got}")


def _disbelieved(step: Step, reached: str) -> str:
    return _joined(step.shown, f": the code looked into the runner ({reached})")


def _raised(step: Step, error: dict[str, Any]) -> str:
    text = _scrubbed(error["text"])
    if step.shown == "import" and step.source == "":
        if error["type"] == "SyntaxError" or error["file"] == "":
            place = f" ({error['file']}, line {error['line']})" if error["file"] else ""
            return _joined(f"{error['type']}: {text}", place)
        return _joined(f"{error['file']}: {error['type']}: {text}", f" (line {error['line']})")
    if error["type"] == "AssertionError" and text.startswith("assert ") and " : got " in text:
        head, _, got = text.rpartition(" : got ")
        return _joined(head, f" : got {got}")
    return _joined(step.shown, f": {error['type']}: {text}" if text else f": {error['type']}")


def decode(value: Any) -> Any:
    """The plain data that `_check_child.encode` wrote; TypeError or ValueError where it did not."""
    if not isinstance(value, list):
        return value
    kind, content = value
    if kind == "dict":
        return {decode(key): decode(item) for key, item in content}
    if kind in ("list", "tuple", "set"):
        return {"list": list, "tuple": tuple, "set": set}[kind](decode(item) for item in content)
    return {"int": lambda text: int(text, 16), "float": float, "complex": complex}[kind](content)


def _show(value: object) -> str:
    """`repr` of plain data, the same in every process: sets are sorted."""
    if isinstance(value, set):
        return "{" + ", ".join(sorted(map(_show, value))) + "}" if value else "set()"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_show(key)}: {_show(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_show, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_show, value)) + (",)" if len(value) == 1 else ")")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        return hex(value)
    return repr(value)


def _scrubbed(text: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _joined(head: str, tail: str) -> str:
    """Head and tail in at most 80 characters; the tail keeps at least half of them."""
    tail = _short(tail, max(WIDTH // 2, WIDTH - len(head)))
    return _short(head, WIDTH - len(tail)) + tail


def _short(text: str, length: int) -> str:
    text = re.sub(r"\s+", " ", text)
    return text if len(text) <= length else text[: length - 3] + "..."
