"""Shaping credit: the potentials of shaping terms, as each turn's part in what is still to come.

potential before each turn -> (0 at the end) less it, turn by turn -> less the group's mean at that turn, weighed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from data_contracts.records import Trajectory
from tasks.credit.outcome import ByTurn, told_apart, turns_of
from tasks.credit.process import centred
from tasks.reward.signals import Signals
from tasks.reward.terms import SHAPING


def shaping_credit(trajectories: Sequence[Trajectory], weights: Mapping[str, float], signals: Signals) -> ByTurn:
    """What the weighed shaping terms add to each turn; nothing in a group whose verified outcomes are all equal.

    Shaping from a turn on is minus the potential before it, since it is 0 once the rollout has ended: a baseline that
    depends on where the turn began and on nothing it did, so that no policy gains by it on average.
    """
    credit: ByTurn = {t.id: np.zeros(turns_of(t)) for t in trajectories}
    known = [name for name in SHAPING if weights.get(name) and name in signals.potentials]
    apart = told_apart(trajectories)
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.scorable and trajectory.group_id in apart and trajectory.turns:
            groups.setdefault(trajectory.group_id, []).append(trajectory)
    for group in groups.values():
        for name in known:
            before = [-np.asarray(signals.potentials[name][t.id][:-1]) for t in group]
            for trajectory, part in zip(group, centred(before), strict=True):
                credit[trajectory.id] += weights[name] * part
    return credit
