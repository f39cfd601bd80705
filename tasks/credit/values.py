"""Credit by values: what each turn changed in the expected reward, where that is known.

value before a turn, by trajectory -> the group's mean before the first -> GAE from known value to known value

`td` knows one before every turn, from the calibrated reward model; `branch` those that sessions sampled again measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from data_contracts.records import Trajectory
from tasks.credit.advantages import Floats, turn_advantages
from tasks.credit.config import CreditConfig
from tasks.credit.outcome import ByTurn, turns_of

Values = Mapping[str, Mapping[int, float]]
"""By trajectory id: the expected reward before a turn, by the turn's number, where known."""


def value_credit(
    trajectories: Sequence[Trajectory], config: CreditConfig, reward_R: Floats, values: Values, lam: float
) -> ByTurn:
    """Advantages by `values`; before its first turn a rollout is worth its group's mean (or the others' mean).

    `scale` = "std" divides all by the standard deviation of the batch's rewards: a group without variance has one of 0,
    and would be blown up by its own. Unscorable rollouts, and those alone in their group, get 0.
    """
    start_R = _starts(reward_R, [t.group_id for t in trajectories], config)
    scorable = reward_R[np.isfinite(reward_R)]
    unit = max(float(scorable.std()), config.std_floor) if config.scale == "std" and scorable.size else 1.0
    credit: ByTurn = {}
    for trajectory, reward, start in zip(trajectories, reward_R.tolist(), start_R.tolist(), strict=True):
        value_T = np.full(turns_of(trajectory), np.nan)
        if not np.isfinite(start):
            credit[trajectory.id] = np.zeros_like(value_T)
            continue
        for turn, value in values.get(trajectory.id, {}).items():
            value_T[turn] = value
        value_T[0] = start
        credit[trajectory.id] = turn_advantages(value_T, reward, lam) / unit
    return credit


def _starts(reward_R: Floats, groups: Sequence[str], config: CreditConfig) -> Floats:
    """What a rollout is worth before its first turn [R]; NaN where nothing can be compared."""
    start_R = np.full_like(reward_R, np.nan)
    for group in set(groups):
        rows = [row for row, name in enumerate(groups) if name == group and np.isfinite(reward_R[row])]
        if len(rows) < 2:
            continue
        mean = reward_R[rows].mean()
        others = (mean * len(rows) - reward_R[rows]) / (len(rows) - 1)
        start_R[rows] = others if config.baseline == "leave_one_out" else mean
    return start_R
