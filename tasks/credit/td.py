"""The values of `td` credit: the calibrated chance of success at each turn's end, as the reward model sees it.

transcript up to a turn's end -> frozen base -> probe -> value before the next turn
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from data_contracts.records import Segment, Trajectory
from models.reward_model import Probe, extract
from tasks.credit.values import Values

if TYPE_CHECKING:
    import torch


def values_by(
    probe: Probe, model: torch.nn.Module, trajectories: Sequence[Trajectory], segments: Sequence[Segment]
) -> Values:
    """The value before each turn but the first, where the probe does not abstain.

    A rollout's last boundary is its end, where the reward is known.
    """
    prefixes = extract(model, trajectories, segments)
    last = {trajectory.id: len(trajectory.turns) for trajectory in trajectories}
    values: dict[str, dict[int, float]] = {}
    predicted, known = probe.predict(prefixes.features).tolist(), probe.knows(prefixes.features).tolist()
    for name, turn, value, sure in zip(prefixes.trajectory_ids, prefixes.turns, predicted, known, strict=True):
        if sure and turn + 1 < last[name]:
            values.setdefault(name, {})[turn + 1] = value
    return values
