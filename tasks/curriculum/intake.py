"""The intake gate: is a problem automatic, deterministic, and within its limits?

problem -> untouched files and reference solution, checked several times -> IntakeResult

Most problems are sound, and a fork per check and repeat would cost more than sampling. So repeats run all checks in
one fork (`_replay`); whatever looks odd there is decided by full runs, which give the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from data_contracts.gates import Gate, threshold
from data_contracts.records import Check, Problem, Record
from tasks.curriculum.config import IntakeConfig
from tasks.rollout.checks import CheckReport, run_checks
from tasks.rollout.sandbox import SandboxError

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
_RAISE = {"timeout": "limits.seconds", "memory": "limits.memory_mb"}


class IntakeResult(Record):
    """The verdict on one problem; `reason` is a sentence where it was rejected, empty where it was admitted."""

    problem_id: str
    admitted: bool
    reason: str = ""
    seconds: float


def admit(problem: Problem, pool: Any, config: IntakeConfig | None = None) -> IntakeResult:
    """Decide on one problem; `pool` is the verifier's `WarmPool`.

    Admitted when the reference solution passes all checks, the untouched files fail at least one visible and one
    hidden check, both give the same verdict each time, and all of it ends within the problem's limits.
    """
    started = time.perf_counter()
    try:
        reason = _objection(problem, pool, config or IntakeConfig())
    except SandboxError as error:
        reason = f"the sandbox itself failed on it: {error}"
    seconds = time.perf_counter() - started
    return IntakeResult(problem_id=problem.id, admitted=not reason, reason=reason, seconds=seconds)


def intake(
    problems: Sequence[Problem],
    pool: Any,
    on_done: Callable[[IntakeResult], None] | None = None,
    *,
    config: IntakeConfig | None = None,
) -> tuple[list[Problem], list[IntakeResult]]:
    """Split problems into admitted ones and rejections, both in the order given; `on_done` hears of each as it ends."""
    settings = config or IntakeConfig()
    admitted: list[Problem] = []
    rejected: list[IntakeResult] = []
    with ThreadPoolExecutor(settings.workers, thread_name_prefix="intake") as threads:
        results = threads.map(lambda problem: admit(problem, pool, settings), problems)
        for problem, result in zip(problems, results, strict=True):
            if result.admitted:
                admitted.append(problem)
            else:
                rejected.append(result)
            if on_done:
                on_done(result)
    return admitted, rejected


def intake_gate(admitted: int, rejected: int, config: IntakeConfig) -> Gate:
    """Whether enough of the problems can be used; none at all is INCONCLUSIVE."""
    n = admitted + rejected
    share = admitted / n if n else None
    return threshold("intake", share, config.minimum_share, kind="at_least", n=n)


class _Replay(NamedTuple):
    """How one fork with all checks ended; bit i of `passed` is check i, visible ones first, None where unknown."""

    ended: str
    passed: int | None


def _objection(problem: Problem, pool: Any, config: IntakeConfig) -> str:
    untouched = _replay(problem, {}, pool)
    if objection := _limit_objection("the untouched problem", untouched.ended):
        return objection
    sound = _fails_both(problem, untouched.passed) and _repeats_agree(problem, untouched, pool, config)
    if sound and _run(problem, problem.solution, pool).passed == len(problem.visible) + len(problem.hidden):
        return ""
    return _full_objection(problem, pool, config)


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


def _full_objection(problem: Problem, pool: Any, config: IntakeConfig) -> str:
    untouched = _run(problem, {}, pool)
    objection = (
        _limit_objection("the untouched problem", untouched.ended)
        or _failure_objection(problem, untouched)
        or _repeat_objection(problem, {}, untouched, "the untouched problem", config.repeats, pool)
    )
    if objection:
        return objection
    solved = _run(problem, problem.solution, pool)
    if objection := _limit_objection("the reference solution", solved.ended):
        return objection
    if solved.failures or solved.passed != solved.total:
        return f"the reference solution fails: {_first_failure(problem, solved)}: mend the solution or the check"
    return _repeat_objection(problem, problem.solution, solved, "the reference solution", config.solution_repeats, pool)


def _run(problem: Problem, changed: Mapping[str, str], pool: Any) -> CheckReport:
    """All checks in one go, renamed by position, since a visible and a hidden one may share a name."""
    checks = [
        Check(name=f"{side}-{index}", code=check.code)
        for side, group in (("visible", problem.visible), ("hidden", problem.hidden))
        for index, check in enumerate(group)
    ]
    return run_checks({**problem.files, **changed}, checks, problem.limits, pool)


def _limit_objection(who: str, ended: str) -> str:
    if ended == "exit":
        return ""
    remedy = f"raise {_RAISE[ended]} or mend it" if ended in _RAISE else "mend it"
    return f"{who} does not finish its checks within the limits: ended by {ended}: {remedy}"


def _failure_objection(problem: Problem, report: CheckReport) -> str:
    failed = {failure.name.split("-")[0] for failure in report.failures}
    for side in ("hidden", "visible"):
        if side not in failed:
            return (
                f"the untouched problem passes all its {side} checks: there is nothing to repair that they see: "
                "add a check that fails on it"
            )
    return ""


def _repeat_objection(
    problem: Problem, changed: Mapping[str, str], first: CheckReport, who: str, repeats: int, pool: Any
) -> str:
    verdict = _verdict(first)
    for _ in range(repeats - 1):
        if _verdict(_run(problem, changed, pool)) != verdict:
            return (
                f"the checks are not deterministic: {who} got different verdicts on the same files: "
                "take chance, time and order out of them"
            )
    return ""


def _verdict(report: CheckReport) -> tuple[str, frozenset[str]]:
    return report.ended, frozenset(failure.name for failure in report.failures)


def _first_failure(problem: Problem, report: CheckReport) -> str:
    if not report.failures:
        return f"{report.passed} of {report.total} checks passed"
    side, index = report.failures[0].name.split("-")
    name = (problem.visible if side == "visible" else problem.hidden)[int(index)].name
    return f"{side} check {name!r}: {report.failures[0].message}"
