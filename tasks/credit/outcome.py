"""Outcome credit: all turns of a rollout share its group-relative reward. `none`: they share the reward itself.

trajectories -> reward per rollout -> advantage within the group -> the same for each turn
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from data_contracts.records import Trajectory
from tasks.credit.advantages import Floats, group_advantages
from tasks.credit.config import CreditConfig
from tasks.reward.signals import NO_SIGNALS, Signals
from tasks.reward.terms import OUTCOME_ONLY, scalar_reward

ByTurn = dict[str, Floats]
"""By trajectory id, the advantage of each of its turns [T], at least one."""


def rewards(
    trajectories: Sequence[Trajectory], weights: Mapping[str, float] = OUTCOME_ONLY, signals: Signals = NO_SIGNALS
) -> Floats:
    """The scalar reward of each rollout [R], NaN where it cannot be scored.

    The proxy counts only within groups whose verified outcomes differ, and of whose every rollout it spoke: a group
    whose outcomes are all equal carries no signal, whatever is said beside them.
    """
    spoken = told_apart(trajectories) - {t.group_id for t in trajectories if t.scorable and t.id not in signals.proxies}
    said = {t.id: signals.proxies[t.id] for t in trajectories if t.group_id in spoken and t.id in signals.proxies}
    return np.array([scalar_reward(trajectory, weights, said) for trajectory in trajectories], dtype=np.float64)


def told_apart(trajectories: Sequence[Trajectory]) -> set[str]:
    """The groups that hold both verified outcomes."""
    found: dict[str, set[bool]] = {}
    for trajectory in trajectories:
        if trajectory.scorable:
            found.setdefault(trajectory.group_id, set()).add(bool(trajectory.outcome))
    return {group for group, outcomes in found.items() if len(outcomes) == 2}


def rollout_advantages(trajectories: Sequence[Trajectory], config: CreditConfig, reward_R: Floats) -> dict[str, float]:
    """Group-relative advantage of each rollout by trajectory id."""
    advantage_R = group_advantages(
        reward_R,
        [trajectory.group_id for trajectory in trajectories],
        baseline=config.baseline,
        scale=config.scale,
        std_floor=config.std_floor,
    )
    return {t.id: advantage for t, advantage in zip(trajectories, advantage_R.tolist(), strict=True)}


def outcome_credit(trajectories: Sequence[Trajectory], config: CreditConfig, reward_R: Floats) -> ByTurn:
    """Each turn gets its rollout's group-relative advantage."""
    advantages = rollout_advantages(trajectories, config, reward_R)
    return {t.id: np.full(turns_of(t), advantages[t.id]) for t in trajectories}


def bare_reward(trajectories: Sequence[Trajectory], reward_R: Floats) -> ByTurn:
    """Each turn gets its rollout's reward, 0 where it cannot be scored: nothing is compared."""
    pairs = zip(trajectories, np.nan_to_num(reward_R, nan=0.0).tolist(), strict=True)
    return {t.id: np.full(turns_of(t), reward) for t, reward in pairs}


def turns_of(trajectory: Trajectory) -> int:
    """How many turns have an advantage."""
    return max(1, len(trajectory.turns))
