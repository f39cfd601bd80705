"""Runs a problem's checks on files an agent wrote, and judges them where the agent's code is not.

files, checks -> a fork in a sandbox runs their steps -> signed records -> judged out here -> CheckReport

Threat model: the agent's code may do anything inside its fork: exit early, patch builtins and modules, print, replace
descriptors, return objects that equal everything, walk frames.
- `assert A == <literal>` cannot be forged: the fork is never told the literal, only plain data is compared, and here.
- In any other comparison a check makes, nested ones included, an object of the agent's own is not equal to data, not
  in it, not near it: `_check_plan` has them made by `_check_plain`.
- What a check imports or names is imported before the agent's code, and put back before each step: modules, the
  attributes of their classes; their functions cannot be changed in place (`_check_modules`).
- Other statements count when the fork says they ran to their end. That record is signed with a key that only a reach
  seen by an audit hook could find, and after a reach only literals that the fork was not told are believed.
- A check that did not report is failed.

Not prevented: an agent's class decides about its own kind (`assert f() == Point(1)`), about its own arithmetic, hash
and truth (`assert f(1) - 3 < 1e-6`, `assert len({f(1), 3}) == 1`, `assert f()`), and about comparisons that a library
makes for a check (`unittest`, `list.index`, `match`). `assert f(1) == 3` is the form to write checks in.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from data_contracts.records import Check, Limits
from tasks.rollout._check_plan import imports, modules_of, plan, uses
from tasks.rollout._check_verdict import Verdict, joined, judge, signed
from tasks.rollout.sandbox import Ended, WarmPool


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
    """Run the checks in a fork in which the files are modules and star-imported; raises SandboxError.

    The fork imports once; each check has its own names, while the modules' own state lasts from check to check. Where
    a check ends the process, the next ones run in a fresh fork. `limits.seconds` is for the whole list: checks it
    leaves no time for fail. With `stop_at_first` the report ends at the first failure: what follows it has not passed.
    """
    verdicts = [_broken(check) for check in checks]
    waiting = [index for index, verdict in enumerate(verdicts) if verdict is None]
    left = limits.seconds
    while waiting and left > 0:
        some, seconds = _run_some(dict(files), [checks[index] for index in waiting], limits, left, pool)
        for index, verdict in zip(waiting, some, strict=False):
            verdicts[index] = verdict
        left -= seconds
        waiting = waiting[len(some) :]
        if stop_at_first and any(verdict.message for verdict in some):
            break
    late = Verdict(f"not run: the {limits.seconds:g} s for all checks are used up", "timeout")
    return _report(checks, [verdict or late for verdict in verdicts], stop_at_first)


def _report(checks: Sequence[Check], verdicts: list[Verdict], stop_at_first: bool) -> CheckReport:
    if stop_at_first:
        first = next((index for index, verdict in enumerate(verdicts) if verdict.message), len(verdicts))
        verdicts = verdicts[: first + 1]
    failures = [
        CheckFailure(check.name, verdict.message)
        for check, verdict in zip(checks, verdicts, strict=False)
        if verdict.message
    ]
    ended: Ended = next((verdict.ended for verdict in verdicts if verdict.ended != "exit"), "exit")
    return CheckReport(len(verdicts) - len(failures), len(checks), failures, ended)


def _broken(check: Check) -> Verdict | None:
    try:
        plan(check.code)
    except SyntaxError as error:
        return Verdict(joined("the check's own code", f": SyntaxError: {error.msg} (line {error.lineno})"))
    return None


def _run_some(
    files: dict[str, str], checks: Sequence[Check], limits: Limits, seconds: float, pool: WarmPool
) -> tuple[list[Verdict], float]:
    """One fork: verdicts up to the check that ended it (all, where none did), and the seconds it used."""
    secret = secrets.token_bytes(32)
    plans = [plan(check.code) for check in checks]
    sent = [
        {"uses": uses(check.code), "imports": imports(check.code), "steps": [step.sent() for step in steps]}
        for check, steps in zip(checks, plans, strict=True)
    ]
    work = {"secret": secret.hex(), "modules": modules_of(files), "checks": sent}
    use = {"seconds": seconds, "memory_mb": limits.memory_mb}
    reply = pool.call({"kind": "checks", "files": files, "checks": work, **use})
    return judge(plans, signed(reply["report"], secret), _cut_short(reply, limits)), reply["seconds"]


def _cut_short(reply: dict[str, Any], limits: Limits) -> Verdict:
    if reply["ended"] == "timeout":
        return Verdict(f"timed out after {limits.seconds:g} s", "timeout")
    if reply["ended"] == "memory":
        return Verdict("MemoryError: out of memory", "memory")
    if reply["ended"] != "exit":
        return Verdict(reply["note"], reply["ended"])
    return Verdict(f"the process ended early with exit code {reply['exit_code']}")
