"""Problems as the list of rollouts to make.

problems x indices -> Job, each with a seed that depends on nothing but the run's seed and its own place
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from data_contracts.records import Problem
from tasks.rollout.agent import Job


def jobs_for(
    problems: Sequence[Problem], indices: Sequence[int], *, iteration: int, run_id: str, seed: int
) -> list[Job]:
    """One job per problem and index, problem by problem."""
    return [
        Job(
            problem=problem,
            group_id=f"{iteration:05d}/{problem.id}",
            rollout_index=index,
            seed=job_seed(seed, iteration, problem.id, index),
            iteration=iteration,
            run_id=run_id,
        )
        for problem in problems
        for index in indices
    ]


def job_seed(seed: int, iteration: int, problem_id: str, index: int) -> int:
    """63 bits from the place of a rollout; equal for equal places, whatever the run is called."""
    digest = hashlib.sha256(f"{seed}/{iteration}/{problem_id}/{index}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1
