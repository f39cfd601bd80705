"""Outcome credit: the whole rollout shares its group-relative reward.

trajectories -> reward per rollout -> advantage within the group -> every sampled token of its segments
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from data_contracts.records import Record, Segment, Trajectory
from tasks.credit.advantages import Floats, group_advantages
from tasks.credit.config import CreditConfig
from tasks.reward.terms import OUTCOME_ONLY, scalar_reward


class CreditReport(Record):
    """What the batch held to learn from. A group without variance carries no signal."""

    rollouts: int
    unscorable: int
    groups: int
    groups_all_passed: int
    groups_all_failed: int
    groups_with_variance: int
    share_with_variance: float | None
    mean_reward: float | None
    mean_abs_advantage: float
    shuffled: bool


def assign(
    trajectories: Sequence[Trajectory],
    segments: Sequence[Segment],
    config: CreditConfig,
    *,
    weights: Mapping[str, float] = OUTCOME_ONLY,
) -> list[Segment]:
    """Fill `advantages` of each segment: its rollout's advantage at sampled tokens, 0 elsewhere.

    A rollout votes once in its group's baseline, however many segments it has. Unscorable rollouts get 0. `weights`
    are those of the reward terms (`RewardConfig.weights`). Raises ValueError for a segment without its trajectory.
    """
    advantages = rollout_advantages(trajectories, config, weights=weights)
    strangers = {segment.trajectory_id for segment in segments} - advantages.keys()
    if strangers:
        raise ValueError(f"segments of unknown trajectories: {sorted(strangers)[:3]}: read the tables of one iteration")
    return [_credited(segment, advantages[segment.trajectory_id]) for segment in segments]


def rollout_advantages(
    trajectories: Sequence[Trajectory], config: CreditConfig, *, weights: Mapping[str, float] = OUTCOME_ONLY
) -> dict[str, float]:
    """Advantage of each rollout by trajectory id. Raises ValueError when an id comes twice."""
    ids = [trajectory.id for trajectory in trajectories]
    if len(set(ids)) != len(ids):
        raise ValueError("a trajectory id comes twice: each rollout votes once")
    advantage_R = group_advantages(
        _rewards(trajectories, weights),
        [trajectory.group_id for trajectory in trajectories],
        baseline=config.baseline,
        scale=config.scale,
        std_floor=config.std_floor,
    )
    if config.shuffle_across_rollouts and trajectories:
        generator = np.random.default_rng([config.shuffle_seed, trajectories[0].iteration])
        advantage_R = generator.permutation(advantage_R)
    return dict(zip(ids, advantage_R.tolist(), strict=True))


def credit_report(
    trajectories: Sequence[Trajectory], config: CreditConfig, *, weights: Mapping[str, float] = OUTCOME_ONLY
) -> CreditReport:
    """Count the groups that carry a signal, and those that do not."""
    reward_R = _rewards(trajectories, weights)
    scorable = np.isfinite(reward_R)
    passed: dict[str, set[bool]] = {}
    rewards: dict[str, set[float]] = {}
    for trajectory, reward in zip(trajectories, reward_R.tolist(), strict=True):
        if trajectory.scorable:
            passed.setdefault(trajectory.group_id, set()).add(bool(trajectory.outcome))
            rewards.setdefault(trajectory.group_id, set()).add(reward)
    groups = len({trajectory.group_id for trajectory in trajectories})
    varied = sum(len(values) > 1 for values in rewards.values())
    spread = list(rollout_advantages(trajectories, config, weights=weights).values())
    return CreditReport(
        rollouts=len(trajectories),
        unscorable=int((~scorable).sum()),
        groups=groups,
        groups_all_passed=sum(values == {True} for values in passed.values()),
        groups_all_failed=sum(values == {False} for values in passed.values()),
        groups_with_variance=varied,
        share_with_variance=varied / groups if groups else None,
        mean_reward=float(reward_R[scorable].mean()) if scorable.any() else None,
        mean_abs_advantage=float(np.abs(spread).mean()) if spread else 0.0,
        shuffled=config.shuffle_across_rollouts,
    )


def _rewards(trajectories: Sequence[Trajectory], weights: Mapping[str, float]) -> Floats:
    return np.array([scalar_reward(trajectory, weights) for trajectory in trajectories], dtype=np.float64)


def _credited(segment: Segment, advantage: float) -> Segment:
    return segment.model_copy(update={"advantages": [advantage if mask else 0.0 for mask in segment.loss_mask]})
