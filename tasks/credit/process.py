"""Process credit: beside the rollout's outcome, each turn's part in the verified progress.

hidden checks that pass after each turn -> progress still to come, turn by turn -> less the group's mean at that turn
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data_contracts.errors import UserError
from data_contracts.records import Trajectory
from tasks.credit.advantages import Floats
from tasks.credit.config import CreditConfig
from tasks.credit.outcome import ByTurn, outcome_credit, turns_of


def process_credit(trajectories: Sequence[Trajectory], config: CreditConfig, reward_R: Floats) -> ByTurn:
    """Outcome credit, plus `progress_weight` times what the turns from this one on added to the checks that pass.

    That is less the mean over the group's rollouts that had this turn, each with one vote. The share of checks is a
    potential that is highest where the outcome is 1, so that the best policy stays the best. A group whose outcomes are
    all equal has no outcome credit, and still this one: it was verified too. Raises UserError where progress was not
    measured.
    """
    credit = outcome_credit(trajectories, config, reward_R)
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.scorable:
            groups.setdefault(trajectory.group_id, []).append(trajectory)
    for group in groups.values():
        for trajectory, part in zip(group, centred([to_come(t) for t in group]), strict=True):
            credit[trajectory.id] = credit[trajectory.id] + config.progress_weight * part
    return credit


def to_come(trajectory: Trajectory) -> Floats:
    """By how much the share of passing hidden checks rose from before each turn to the end [T]."""
    steps = [turn.progress for turn in trajectory.turns]
    known = [step for step in steps if step is not None]
    if len(known) != len(steps):
        raise UserError(
            f"trajectory {trajectory.id} has turns whose progress was not measured: verify it again, with "
            'credit.method = "process" set before the run starts.'
        )
    return np.cumsum([*known, *[0.0] * (turns_of(trajectory) - len(known))][::-1])[::-1]


def centred(group: Sequence[Floats]) -> list[Floats]:
    """Less the mean at each turn over the rollouts that had it; 0 where one alone had it."""
    sums = np.zeros(max(len(one) for one in group))
    counts = np.zeros_like(sums)
    for one in group:
        sums[: len(one)] += one
        counts[: len(one)] += 1
    means = sums / counts
    return [np.where(counts[: len(one)] > 1, one - means[: len(one)], 0.0) for one in group]
