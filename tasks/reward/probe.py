"""Fit the reward model on verified rollouts and measure it on problems it never saw.

verified rollouts -> choice -> features -> split by problem -> probe -> calibration report
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from data_contracts.records import Segment, Trajectory
from models.reward_model import Probe, extract, fit_probe
from tasks.reward.calibration import CalibrationReport, calibration_report
from tasks.reward.config import ProbeConfig

if TYPE_CHECKING:
    import torch


def choose_rollouts(trajectories: Sequence[Trajectory], config: ProbeConfig) -> list[Trajectory]:
    """At most `rollouts` scorable ones, drawn without regard to their iteration; the same seed draws the same."""
    scorable = sorted((t for t in trajectories if t.scorable), key=lambda trajectory: trajectory.id)
    if len(scorable) <= config.rollouts:
        return scorable
    chosen = np.random.default_rng(config.seed).choice(len(scorable), config.rollouts, replace=False)
    return [scorable[i] for i in sorted(chosen.tolist())]


def fit_and_measure(
    model: torch.nn.Module, trajectories: Sequence[Trajectory], segments: Sequence[Segment], config: ProbeConfig
) -> tuple[Probe, CalibrationReport]:
    """Fit on the train part, calibrate on the next, measure on the test part; `model` is the frozen base."""
    prefixes = extract(model, trajectories, segments, config.batch_size)
    parts = prefixes.split(config.train_share, config.calibrate_share, config.seed)
    probe = fit_probe(parts["train"], parts["calibrate"], c=config.c)
    test = parts["test"]
    report = calibration_report(
        probe.predict(test.features).tolist(),
        test.outcomes,
        test.horizons,
        test.problem_ids,
        test.trajectory_ids,
        config,
    )
    return probe, report
