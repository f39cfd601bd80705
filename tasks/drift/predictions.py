"""What a release's reward model said of the sessions of its reference: what live predictions are compared with.

reference trajectories + their segments -> frozen base -> probe -> chance of success at the end of each, by id -> JSON
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data_contracts.records import Segment, Trajectory
from models.reward_model import extract, load_probe

if TYPE_CHECKING:
    import torch


def predict_outcomes(
    probe: Path, model: torch.nn.Module, trajectories: Sequence[Trajectory], segments: Sequence[Segment]
) -> dict[str, float]:
    """Chance of success by trajectory id, from its whole transcript; `model` is the frozen base."""
    prefixes = extract(model, trajectories, segments)
    values = load_probe(probe).predict(prefixes.features).tolist()
    return dict(zip(prefixes.trajectory_ids, values, strict=True))  # a trajectory's last turn comes last
