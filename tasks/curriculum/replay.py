"""A quick look at a `repair` problem: all its checks in one fork, which costs a fraction of a full run.

problem -> untouched files and reference solution, replayed -> sound, or not known to be
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from data_contracts.records import Check, Problem
from tasks.curriculum.config import IntakeConfig
from tasks.rollout.checks import run_checks

_REPLAY = """
def ratchet_passed():
    passed = 0
    for bit, code in enumerate({codes!r}):
        try:
            exec(code, dict(globals()))
        except Exception:
            continue
        passed |= 1 << bit
    return passed
assert ratchet_passed() == -1
"""
"""A check that always fails, and whose message says which of the others passed."""


class _Replay(NamedTuple):
    """How one fork with all checks ended; bit i of `passed` is check i, visible ones first, None where unknown."""

    ended: str
    passed: int | None


def sound_by_replay(problem: Problem, pool: Any, config: IntakeConfig) -> bool:
    """Whether repeats agree, untouched files fail both kinds of checks, and a full run of the solution passes all."""
    untouched = _replay(problem, {}, pool)
    if not _fails_both(problem, untouched.passed) or not _repeats_agree(problem, untouched, pool, config):
        return False
    everything = (*problem.visible, *problem.hidden)
    checks = [Check(name=str(number), code=check.code) for number, check in enumerate(everything)]
    report = run_checks({**problem.files, **problem.solution}, checks, problem.limits, pool)
    return report.ended == "exit" and report.passed == len(everything)


def _fails_both(problem: Problem, passed: int | None) -> bool:
    visible = (1 << len(problem.visible)) - 1
    everything = (1 << len(problem.visible) + len(problem.hidden)) - 1
    return passed is not None and bool(visible & ~passed) and bool(everything & ~visible & ~passed)


def _repeats_agree(problem: Problem, untouched: _Replay, pool: Any, config: IntakeConfig) -> bool:
    everything = (1 << len(problem.visible) + len(problem.hidden)) - 1
    return all(_replay(problem, {}, pool) == untouched for _ in range(config.repeats - 1)) and all(
        _replay(problem, problem.solution, pool).passed == everything for _ in range(config.solution_repeats - 1)
    )


def _replay(problem: Problem, changed: Mapping[str, str], pool: Any) -> _Replay:
    codes = [check.code for check in (*problem.visible, *problem.hidden)]
    check = Check(name="replay", code=_REPLAY.format(codes=codes))
    report = run_checks({**problem.files, **changed}, [check], problem.limits, pool)
    got = report.failures[0].message.rpartition(" : got ")[2] if report.failures else ""
    return _Replay(report.ended, int(got) if got.isdecimal() else None)
