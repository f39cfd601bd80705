"""The intake gate: is a problem automatic, deterministic, and within its limits?

problem -> form -> untouched files and reference solution, checked several times -> IntakeResult

The environment runs the checks. Most problems of `repair` are sound, and a replay shows that sooner (`replay.py`);
whatever looks odd there is decided by full runs, which give the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from data_contracts.errors import UserError
from data_contracts.gates import Gate, threshold
from data_contracts.records import Problem, Record
from tasks.curriculum.config import IntakeConfig
from tasks.curriculum.replay import sound_by_replay
from tasks.rollout.environments import Environment, VerifierError, environment_of
from tasks.rollout.environments.base import CheckSide, Trial
from tasks.rollout.environments.repair import Repair
from tasks.rollout.sandbox import SandboxError

_RAISE = {"timeout": "limits.seconds", "memory": "limits.memory_mb"}


class IntakeResult(Record):
    """The verdict on one problem; `reason` is a sentence where it was rejected, empty where it was admitted."""

    problem_id: str
    admitted: bool
    reason: str = ""
    seconds: float


def admit(problem: Problem, pool: Any, config: IntakeConfig | None = None) -> IntakeResult:
    """Decide on one problem; `pool` is the verifier's `WarmPool`.

    Admitted when its environment finds nothing wrong with its form, the reference solution passes all checks, the
    untouched files fail at least one hidden check (and in `repair` a visible one), both give the same verdict each
    time, and all of it ends within the problem's limits.
    """
    started = time.perf_counter()
    try:
        reason = _objection(problem, pool, config or IntakeConfig())
    except UserError as error:
        reason = str(error)
    except SandboxError as error:
        reason = f"the sandbox itself failed on it: {error}"
    except VerifierError as error:
        reason = f"its verifier itself failed on it: {error}"
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


def _objection(problem: Problem, pool: Any, config: IntakeConfig) -> str:
    environment = environment_of(problem)
    if objection := environment.objection(problem):
        return objection
    if isinstance(environment, Repair) and sound_by_replay(problem, pool, config):
        return ""
    trials = _Trials(problem, environment, pool)
    untouched = trials.run({})
    objection = (
        _limit_objection("the untouched problem", untouched.ended)
        or _failure_objection(environment.must_tell, untouched)
        or trials.repeat_objection({}, untouched, "the untouched problem", config.repeats)
    )
    if objection:
        return objection
    solved = trials.run(problem.solution)
    if objection := _limit_objection("the reference solution", solved.ended):
        return objection
    if solved.failures:
        return f"the reference solution fails: {_first_failure(problem, solved)}: mend the solution or the check"
    return trials.repeat_objection(problem.solution, solved, "the reference solution", config.solution_repeats)


class _Trials:
    """Runs a problem's checks on its files with some changes."""

    def __init__(self, problem: Problem, environment: Environment, pool: Any) -> None:
        self._problem, self._environment, self._pool = problem, environment, pool

    def run(self, changed: dict[str, str]) -> Trial:
        return self._environment.trial(self._problem, {**self._problem.files, **changed}, self._pool)

    def repeat_objection(self, changed: dict[str, str], first: Trial, who: str, repeats: int) -> str:
        for _ in range(repeats - 1):
            if _verdict(self.run(changed)) != _verdict(first):
                return (
                    f"the checks are not deterministic: {who} got different verdicts on the same files: "
                    "take chance, time and order out of them"
                )
        return ""


def _limit_objection(who: str, ended: str) -> str:
    if ended == "exit":
        return ""
    remedy = f"raise {_RAISE[ended]} or mend it" if ended in _RAISE else "mend it"
    return f"{who} does not finish its checks within the limits: ended by {ended}: {remedy}"


def _failure_objection(must_tell: tuple[CheckSide, ...], untouched: Trial) -> str:
    failed = {failure.side for failure in untouched.failures}
    for side in must_tell:
        if side not in failed:
            return (
                f"the untouched problem passes all its {side} checks: there is nothing to repair that they see: "
                "add a check that fails on it"
            )
    return ""


def _verdict(trial: Trial) -> tuple[str, frozenset[tuple[str, int]]]:
    return trial.ended, frozenset((failure.side, failure.place) for failure in trial.failures)


def _first_failure(problem: Problem, trial: Trial) -> str:
    side, place, message = trial.failures[0]
    name = (problem.visible if side == "visible" else problem.hidden)[place].name
    return f"{side} check {name!r}: {message}"
