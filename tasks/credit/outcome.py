"""Outcome credit: all turns of a rollout share its group-relative reward. `none`: they share the reward itself.

trajectories -> reward per rollout -> advantage within the group -> the same for each turn
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from data_contracts.records import Trajectory
from tasks.credit.advantages import Floats, group_advantages
from tasks.credit.config import CreditConfig
from tasks.reward.terms import OUTCOME_ONLY, scalar_reward

ByTurn = dict[str, Floats]
"""By trajectory id, the advantage of each of its turns [T], at least one."""


def rewards(trajectories: Sequence[Trajectory], weights: Mapping[str, float]) -> Floats:
    """The scalar reward of each rollout [R], NaN where it cannot be scored."""
    return np.array([scalar_reward(trajectory, weights) for trajectory in trajectories], dtype=np.float64)


def rollout_advantages(
    trajectories: Sequence[Trajectory], config: CreditConfig, *, weights: Mapping[str, float] = OUTCOME_ONLY
) -> dict[str, float]:
    """Group-relative advantage of each rollout by trajectory id."""
    advantage_R = group_advantages(
        rewards(trajectories, weights),
        [trajectory.group_id for trajectory in trajectories],
        baseline=config.baseline,
        scale=config.scale,
        std_floor=config.std_floor,
    )
    return {t.id: advantage for t, advantage in zip(trajectories, advantage_R.tolist(), strict=True)}


def outcome_credit(trajectories: Sequence[Trajectory], config: CreditConfig, weights: Mapping[str, float]) -> ByTurn:
    """Each turn gets its rollout's group-relative advantage."""
    advantages = rollout_advantages(trajectories, config, weights=weights)
    return {t.id: np.full(turns_of(t), advantages[t.id]) for t in trajectories}


def bare_reward(trajectories: Sequence[Trajectory], weights: Mapping[str, float]) -> ByTurn:
    """Each turn gets its rollout's reward, 0 where it cannot be scored: nothing is compared."""
    reward_R = np.nan_to_num(rewards(trajectories, weights), nan=0.0)
    return {t.id: np.full(turns_of(t), reward) for t, reward in zip(trajectories, reward_R.tolist(), strict=True)}


def turns_of(trajectory: Trajectory) -> int:
    """How many turns have an advantage."""
    return max(1, len(trajectory.turns))
