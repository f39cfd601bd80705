"""Trajectories to test the stages with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from data_contracts.records import Sampling, Trajectory

MakeTrajectory = Callable[..., Trajectory]


@pytest.fixture
def make_trajectory() -> MakeTrajectory:
    """A verified rollout of problem `problem`; `outcome=None` with an infrastructure status is an unscorable one."""

    def make(problem: str = "p", rollout: int = 0, *, outcome: bool | None = True, **changes: Any) -> Trajectory:
        fields: dict[str, Any] = {
            "id": f"{problem}-{rollout}",
            "run_id": "run",
            "iteration": 0,
            "problem_id": problem,
            "horizon": "short",
            "group_id": problem,
            "rollout_index": rollout,
            "policy_version": "policy-00000",
            "policy_digest": "d",
            "status": "completed",
            "sampling": Sampling(),
            "turns": (),
            "prompt_ids": [],
            "sampled_tokens": 1,
            "context_tokens": 1,
            "outcome": outcome,
            "rewards": {} if outcome is None else {"outcome": float(outcome)},
        }
        return Trajectory(**(fields | changes))

    return make
