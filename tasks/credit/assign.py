"""Credit, whatever the method: advantages by turn, spread over the tokens that each turn sampled.

trajectories (+ values) -> method -> advantage of each turn -> every sampled token of the segments
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from data_contracts.records import Record, Segment, Trajectory
from tasks.credit.config import CreditConfig, Method
from tasks.credit.outcome import ByTurn, bare_reward, outcome_credit, rewards, told_apart
from tasks.credit.process import process_credit
from tasks.credit.shaping import shaping_credit
from tasks.credit.values import Values, value_credit
from tasks.reward.signals import NO_SIGNALS, Signals
from tasks.reward.terms import OUTCOME_ONLY


class CreditReport(Record):
    """What the batch held to learn from. A group without variance carries no outcome signal."""

    method: Method
    """what was used; `outcome` also where `td` or `branch` had no values"""
    note: str = ""
    rollouts: int
    unscorable: int
    groups: int
    groups_all_passed: int
    groups_all_failed: int
    groups_with_variance: int
    share_with_variance: float | None
    mean_reward: float | None
    mean_abs_advantage: float
    """over the rollouts' turns"""
    charged_turns: int
    shuffled: bool


def by_turn(
    trajectories: Sequence[Trajectory],
    config: CreditConfig,
    *,
    weights: Mapping[str, float] = OUTCOME_ONLY,
    values: Values | None = None,
    signals: Signals = NO_SIGNALS,
) -> ByTurn:
    """The advantage of each turn by trajectory id; unscorable rollouts get 0.

    `td` and `branch` need `values`, and speak of the outcome alone. `weights` are those of the reward terms
    (`RewardConfig.weights`), `signals` what terms beside the outcome say. Raises ValueError when an id comes twice.
    """
    if len({trajectory.id for trajectory in trajectories}) != len(trajectories):
        raise ValueError("a trajectory id comes twice: each rollout votes once")
    reward_R = rewards(trajectories, weights, signals)
    match config.method:
        case "none":
            credit = bare_reward(trajectories, reward_R)
        case "outcome":
            credit = outcome_credit(trajectories, config, reward_R)
        case "process":
            credit = process_credit(trajectories, config, reward_R)
        case "td" | "branch":
            if values is None:
                raise ValueError(f"{config.method} credit needs values: fall back to outcome where there are none")
            lam = config.td_lambda if config.method == "td" else 0.0
            credit = value_credit(trajectories, config, rewards(trajectories, weights), values, lam)
    for name, part in shaping_credit(trajectories, weights, signals).items():
        credit[name] = credit[name] + part
    for trajectory in trajectories:
        if trajectory.scorable:
            for turn in _malformed(trajectory):
                credit[trajectory.id][turn] -= config.malformed_charge
    return _shuffled(credit, trajectories, config) if config.shuffle_across_rollouts else credit


def assign(
    trajectories: Sequence[Trajectory],
    segments: Sequence[Segment],
    config: CreditConfig,
    *,
    weights: Mapping[str, float] = OUTCOME_ONLY,
    values: Values | None = None,
    signals: Signals = NO_SIGNALS,
) -> list[Segment]:
    """Fill `advantages` of each segment: its turns' advantages at sampled tokens, 0 elsewhere.

    A rollout votes once in its group's baseline, however many segments it has. Raises ValueError for a segment without
    its trajectory, or an id that comes twice.
    """
    credit = by_turn(trajectories, config, weights=weights, values=values, signals=signals)
    strangers = {segment.trajectory_id for segment in segments} - credit.keys()
    if strangers:
        raise ValueError(f"segments of unknown trajectories: {sorted(strangers)[:3]}: read the tables of one iteration")
    return [_credited(segment, credit[segment.trajectory_id].tolist()) for segment in segments]


def credit_report(
    trajectories: Sequence[Trajectory],
    config: CreditConfig,
    *,
    weights: Mapping[str, float] = OUTCOME_ONLY,
    values: Values | None = None,
    signals: Signals = NO_SIGNALS,
    note: str = "",
) -> CreditReport:
    """Count the groups that carry a signal, and those that do not."""
    reward_R = rewards(trajectories, weights, signals)
    scorable = np.isfinite(reward_R)
    passed: dict[str, set[bool]] = {}
    for trajectory in trajectories:
        if trajectory.scorable:
            passed.setdefault(trajectory.group_id, set()).add(bool(trajectory.outcome))
    groups = len({trajectory.group_id for trajectory in trajectories})
    varied = len(told_apart(trajectories))
    credit = list(by_turn(trajectories, config, weights=weights, values=values, signals=signals).values())
    return CreditReport(
        method=config.method,
        note=note,
        rollouts=len(trajectories),
        unscorable=int((~scorable).sum()),
        groups=groups,
        groups_all_passed=sum(found == {True} for found in passed.values()),
        groups_all_failed=sum(found == {False} for found in passed.values()),
        groups_with_variance=varied,
        share_with_variance=varied / groups if groups else None,
        mean_reward=float(reward_R[scorable].mean()) if scorable.any() else None,
        mean_abs_advantage=float(np.abs(np.concatenate(credit)).mean()) if credit else 0.0,
        charged_turns=sum(len(_malformed(t)) for t in trajectories if t.scorable) if config.malformed_charge else 0,
        shuffled=config.shuffle_across_rollouts,
    )


def _malformed(trajectory: Trajectory) -> list[int]:
    return [turn.index for turn in trajectory.turns if turn.call_errors]


def _shuffled(credit: ByTurn, trajectories: Sequence[Trajectory], config: CreditConfig) -> ByTurn:
    """Each rollout gets the mean advantage of another one, drawn at random."""
    generator = np.random.default_rng([config.shuffle_seed, trajectories[0].iteration] if trajectories else 0)
    means = generator.permutation([part.mean() for part in credit.values()])
    return {name: np.full_like(part, mean) for (name, part), mean in zip(credit.items(), means, strict=True)}


def _credited(segment: Segment, advantages: Sequence[float]) -> Segment:
    pairs = zip(segment.loss_mask, segment.turn_index, strict=True)
    return segment.model_copy(update={"advantages": [advantages[turn] if mask else 0.0 for mask, turn in pairs]})
