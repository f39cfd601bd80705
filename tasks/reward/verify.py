"""The verified outcome: the environment judges what was handed in afresh, where the agent never was.

trajectory (its files) + problem (hidden checks) -> verifier's sandbox -> trajectory with outcome and reward terms
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from data_contracts.records import INFRASTRUCTURE, Problem, Trajectory, Turn
from tasks.reward.config import RewardConfig
from tasks.reward.progress import Progress
from tasks.reward.terms import reward_terms
from tasks.rollout.environments import Verified, VerifierError, checked, environment_of
from tasks.rollout.sandbox import SandboxError


def verify(
    trajectory: Trajectory, problem: Problem, pool: Any, *, retries: int = 2, progress: Progress | None = None
) -> Trajectory:
    """Judge the files as the rollout left them, submitted or not; `pool` is the verifier's own.

    `progress`: judge them after each turn too, for `Turn.progress`.

    The outcome is True when all checks pass. A rollout that ended by a failure of ours is returned as it came. A
    sandbox that fails `retries` + 1 times, or a verdict that is no score from 0 to 1, gives status `verifier_error` and
    no outcome: never a failure of the policy.
    """
    if trajectory.problem_id != problem.id:
        raise ValueError(f"trajectory {trajectory.id} is of problem {trajectory.problem_id}, not of {problem.id}")
    if trajectory.status in INFRASTRUCTURE:
        return trajectory
    environment = environment_of(problem)
    for attempt in range(retries + 1):
        try:
            found = checked(environment.verify(problem, trajectory.files, pool))
            turns = progress.of(trajectory, problem) if progress else trajectory.turns
            return _verified(trajectory, found, turns)
        except VerifierError as error:
            return _unverified(trajectory, str(error))
        except SandboxError as error:
            if attempt == retries:
                return _unverified(trajectory, f"the verifier's sandbox failed {retries + 1} times: {error}")
    raise AssertionError("retries is at least 0")


def verify_all(
    trajectories: Sequence[Trajectory],
    problems: Mapping[str, Problem],
    pool: Any,
    config: RewardConfig,
    on_done: Callable[[Trajectory], None] | None = None,
    *,
    by_turn: bool = False,
) -> list[Trajectory]:
    """Verify in parallel and record the reward terms; the order is kept, and `on_done` hears of each as it ends.

    `by_turn`: and measure what each turn added.
    """
    progress = Progress(pool) if by_turn else None

    def work(trajectory: Trajectory) -> Trajectory:
        problem = problems[trajectory.problem_id]
        verified = verify(trajectory, problem, pool, retries=config.verifier_retries, progress=progress)
        terms = reward_terms(verified, config.terms)
        return verified.model_copy(update={"rewards": terms})

    done: list[Trajectory] = []
    with ThreadPoolExecutor(config.verifier_workers, thread_name_prefix="verify") as threads:
        for trajectory in threads.map(work, trajectories):
            done.append(trajectory)
            if on_done:
                on_done(trajectory)
    return done


def _verified(trajectory: Trajectory, found: Verified, turns: tuple[Turn, ...]) -> Trajectory:
    outcome = found.passed == found.total
    return trajectory.model_copy(
        update={"hidden_passed": found.passed, "hidden_total": found.total, "outcome": outcome, "turns": turns}
    )


def _unverified(trajectory: Trajectory, detail: str) -> Trajectory:
    return trajectory.model_copy(
        update={"status": "verifier_error", "detail": detail, "hidden_passed": None, "outcome": None, "rewards": {}}
    )
