"""An iteration broken off between two optimizer steps goes on with the next, on the segments that were left."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from data_contracts.records import Segment
from models.policy import Base, load_base
from tasks.training import distributed
from tasks.training.checkpoints import read_note
from tasks.training.config import TrainingConfig
from tasks.training.engine import TrainingEngine
from tasks.training.learner import Batch, Tally, score, train

STEPS = 8
CONFIG = TrainingConfig(learning_rate=1e-3, warmup_steps=0, minibatches=4, epochs=2, micro_batch_tokens=70)


def _engine(base: Base, policy: Path, config: TrainingConfig) -> TrainingEngine:
    distributed.start_process_group()
    return TrainingEngine(load_base(base.path), policy, config)


def _batch(engine: TrainingEngine, segments: list[Segment]) -> Batch:
    return Batch(segments, score(engine, segments), [[1.0] * sum(segment.loss_mask) for segment in segments])


def _run(engine: TrainingEngine, segments: list[Segment], step: int, progress: Path) -> Tally:
    return train(engine, _batch(engine, segments), step, progress)


@pytest.mark.parametrize(
    ("every", "kept", "stage"),
    [(3, 6, 2), (4, 4, 2), (7, 7, 2), (5, 5, 3)],
    ids=["in the second epoch", "between epochs", "before the last step", "ZeRO-3"],
)
def test_what_is_left_is_trained_and_nothing_twice(
    base: Base, policy_zero: Path, sample_segments, tmp_path: Path, every: int, kept: int, stage: int
) -> None:
    config = CONFIG.model_copy(update={"zero_stage": stage, "checkpoint_steps": every})
    first, second, progress = sample_segments(9), sample_segments(9, seed=1), tmp_path / "progress"
    engine = _engine(base, policy_zero, config)
    train(engine, _batch(engine, first), 0)
    engine.save(tmp_path / "policy-00001", tmp_path / "c")
    unbroken = _run(engine, second, 1, progress)
    weights = engine.state()
    engine.close()

    resumed = _engine(base, tmp_path / "policy-00001", config)
    resumed.load_checkpoint(tmp_path / "policy-00001", tmp_path / "c")
    assert len(read_note(progress).progress["tally"]["dealt"]) == kept
    tally = _run(resumed, second, 1, progress)
    assert tally.dealt == unbroken.dealt
    assert sorted(i for part in tally.dealt for i in part) == sorted([*range(9), *range(9)])
    assert len(tally.norms) == STEPS
    assert tally.norms == pytest.approx(unbroken.norms, rel=1e-6)
    assert max(float((resumed.state()[name] - weights[name]).abs().max()) for name in weights) < 1e-6
    resumed.close()


def _name(progress: Path) -> str:
    return read_note(progress).progress["iteration"]


def test_progress_of_something_else_is_left_alone(
    base: Base, policy_zero: Path, policy_moved: Path, sample_segments, tmp_path: Path
) -> None:
    config = CONFIG.model_copy(update={"checkpoint_steps": 3})
    segments, progress = sample_segments(9), tmp_path / "progress"
    engine = _engine(base, policy_zero, config)
    _run(engine, segments, 0, progress)
    name = _name(progress)
    engine.close()

    again = _engine(base, policy_zero, config)
    before = again.state()
    assert again.load_progress(tmp_path / "nothing", name) is None
    assert again.load_progress(progress, "another iteration") is None
    assert all(torch.equal(tensor, before[key]) for key, tensor in again.state().items())
    again.close()
    other = _engine(base, policy_moved, config)
    assert other.load_progress(progress, name) is None, "it began with other weights"
    for step, some in ((1, segments), (0, sample_segments(9, seed=2))):
        _run(other, some, step, progress)
        assert _name(progress) != name
    other.close()
