"""The environment `workspace`: a small software project, and a command that checks it.

list, search, read -> edit -> run (in a sandbox) -> ... -> submit -> hidden files laid over -> exit code of the check

What decides: the hidden commands, run in the verifier's sandbox on the project as handed in (`handed_in`), with the
problem's `hidden_files` laid over it. A command that passes is run once more with the `control` files laid over too,
under which it has to fail: work that brings its own verdict (exits with 0 on import, patches the test library, prints
"OK") passes there as well, and is judged as failed. Against this stand protected and hidden files, names that tools
obey, modules that hide the standard library's, and the control; not safe is a check whose program the agent's code can
tell from its control, since both share a process with it. For work that may be hostile, let the hidden command start
the project as a process of its own and compare what it prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_contracts.records import Check, Problem
from tasks.rollout.environments.base import CheckSide, Failure, Trial, Verified, other_kind
from tasks.rollout.environments.handed_in import handed_in, refusal
from tasks.rollout.environments.project import ProjectSession
from tasks.rollout.sandbox import Ended, SandboxResult, WarmPool

_CONTROL = "it passes with the control files laid over as well, so its exit code says nothing"


class Workspace:
    """Projects whose checks are commands; see the module's text for what a verdict rests on."""

    must_tell: tuple[CheckSide, ...] = ("hidden",)

    def objection(self, problem: Problem) -> str:
        """Checks are commands, a control is given, and the reference solution is something that can be handed in."""
        for check in (*problem.visible, *problem.hidden):
            if objection := other_kind(check, "command"):
                return objection
        if not problem.control:
            return "control: empty: give files under which every hidden check fails, such as one more test that fails"
        for path in problem.solution:
            if reason := refusal(problem, path):
                return f"solution: {reason}, so it cannot be handed in: take it out of the solution"
        return ""

    def open(self, problem: Problem, sandboxes: WarmPool) -> ProjectSession:
        return ProjectSession(problem, sandboxes)

    def verify(self, problem: Problem, files: Mapping[str, str], pool: Any) -> Verified:
        """The hidden commands on what was handed in; `score` is the share that pass."""
        work = handed_in(problem, files)
        passed = sum(not _judged(problem, check, work, pool)[1] for check in problem.hidden)
        return Verified(passed / len(problem.hidden), passed, len(problem.hidden))

    def trial(self, problem: Problem, files: Mapping[str, str], pool: Any) -> Trial:
        """Every command, the visible ones on the files as they are."""
        work = handed_in(problem, files)
        found: list[tuple[CheckSide, int, Ended, str]] = []
        for index, check in enumerate(problem.visible):
            result = pool.run(check.command, files, problem.limits)
            found.append(("visible", index, result.ended, why_failed(result)))
        for index, check in enumerate(problem.hidden):
            found.append(("hidden", index, *_judged(problem, check, work, pool)))
        ended: Ended = next((ended for _, _, ended, _ in found if ended != "exit"), "exit")
        return Trial(ended, tuple(Failure(side, index, message) for side, index, _, message in found if message))


def why_failed(result: SandboxResult) -> str:
    """Why a command did not pass: how it ended and the last line it wrote; empty where it passed."""
    if result.ended == "exit" and result.exit_code == 0:
        return ""
    how = f"exit code {result.exit_code}" if result.ended == "exit" else f"ended by {result.ended}"
    said = (result.stderr.strip() or result.stdout.strip()).splitlines()
    return f"{how}: {said[-1][:120]}" if said else how


def _judged(problem: Problem, check: Check, work: Mapping[str, str], pool: Any) -> tuple[Ended, str]:
    """How a hidden command ended and why it did not pass, "" where it did: first by itself, then by its control."""
    files = {**work, **problem.hidden_files}
    result: SandboxResult = pool.run(check.command, files, problem.limits)
    if message := why_failed(result):
        return result.ended, message
    control: SandboxResult = pool.run(check.command, {**files, **problem.control}, problem.limits)
    if control.ended != "exit":  # cut short, it shows nothing: a forgery would have been cut as well
        return control.ended, f"under its control it is {why_failed(control)}"
    return "exit", "" if control.exit_code else _CONTROL
