"""Fit the reward model on verified rollouts and measure it on problems it never saw.

verified rollouts -> choice -> body (the frozen base, or fine-tuned) -> split by problem -> probe -> calibration report
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from data_contracts.records import Segment, Trajectory
from models.fingerprint import digest_folder
from models.policy import Base
from models.reward_classifier import FOLDER, fine_tune, load_classifier
from models.reward_model import Prefixes, Probe, Split, extract, fit_probe, load_probe, side_of
from tasks.reward.calibration import CalibrationReport, calibration_report
from tasks.reward.config import ProbeConfig, RewardConfig

if TYPE_CHECKING:
    import torch


class Fitted(NamedTuple):
    """A reward model, how true it is on unseen problems, and which calibrator it took, by how much the better one."""

    probe: Probe
    report: CalibrationReport
    calibrator: Mapping[str, Any]


def choose_rollouts(trajectories: Sequence[Trajectory], config: ProbeConfig) -> list[Trajectory]:
    """At most `rollouts` scorable ones, drawn without regard to their iteration; the same seed draws the same."""
    scorable = sorted((t for t in trajectories if t.scorable), key=lambda trajectory: trajectory.id)
    if len(scorable) <= config.rollouts:
        return scorable
    chosen = np.random.default_rng(config.seed).choice(len(scorable), config.rollouts, replace=False)
    return [scorable[i] for i in sorted(chosen.tolist())]


def fit_and_measure(
    base: Base, trajectories: Sequence[Trajectory], segments: Sequence[Segment], config: RewardConfig, folder: Path
) -> Fitted:
    """Fit on the train part, calibrate on the next, measure on the test part; a classifier is kept in `folder`."""
    probing = config.probe
    head = None
    if config.model == "classifier":
        train = [t for t in trajectories if _side(t, probing) == "train"]
        fine_tune(Path(base.path), train, segments, folder / FOLDER, config.classifier, probing.seed)
        head = load_classifier(Path(base.path), folder / FOLDER)[1]
    prefixes = extract(body(base, folder), trajectories, segments, probing.batch_size)
    parts = prefixes.split(probing.train_share, probing.calibrate_share, probing.seed)
    probe, choice = fit_probe(parts["train"], parts["calibrate"], c=probing.c, abstain=probing.abstain, head=head)
    return Fitted(probe, measure(probe, parts["test"], probing), choice.told())


def measure(probe: Probe, prefixes: Prefixes, config: ProbeConfig) -> CalibrationReport:
    """How true the reward model is on these rollouts; what it abstains on is counted and left out."""
    return calibration_report(probe.predict(prefixes.features), probe.knows(prefixes.features), prefixes, config)


def body(base: Base, folder: Path) -> torch.nn.Module:
    """The model whose hidden states a reward model in `folder` reads."""
    return load_classifier(Path(base.path), folder / FOLDER)[0] if (folder / FOLDER).exists() else base.model


def open_reward_model(base: Base, folder: Path) -> tuple[Probe, torch.nn.Module]:
    """A fitted reward model: its probe, and the model it reads."""
    return load_probe(folder / "probe.joblib"), body(base, folder)


def digest(probe: Probe, folder: Path) -> str:
    """sha256 over the whole reward model: the probe's, or both its and the classifier's."""
    if not (folder / FOLDER).exists():
        return probe.digest
    return hashlib.sha256(f"{probe.digest} {digest_folder(folder / FOLDER)}".encode()).hexdigest()


def _side(trajectory: Trajectory, config: ProbeConfig) -> Split:
    return side_of(trajectory.problem_id, config.train_share, config.calibrate_share, config.seed)
