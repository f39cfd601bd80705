"""SIGKILL in an optimizer step and in the writes of a checkpoint: what is run again ends with the same weights."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from data_contracts.store import write_segments
from models.policy import Base
from tasks.training.client import Trainer, TrainerDied
from tasks.training.config import TrainingConfig
from tasks.training.reports import TrainReport

CONFIG = TrainingConfig(
    learning_rate=1e-3, warmup_steps=0, minibatches=3, epochs=4, checkpoint_steps=5, micro_batch_tokens=60, threads=1
)
STEPS = 12


class Run:
    """Policies of two iterations in a folder of their own; the second one starts from `first`'s policy."""

    def __init__(self, root: Path, batches: list[Path]) -> None:
        self.root, self.batches = root, batches
        self.checkpoints = root / "checkpoints"

    def policy(self, number: int) -> Path:
        return self.root / f"policy-{number:05d}"

    def train(self, trainer: Trainer, step: int) -> TrainReport:
        return trainer.train(self.batches[step], None, self.policy(step + 1), self.checkpoints, step)


@pytest.fixture(scope="module")
def trainer_of(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Trainer]]:
    """The worker that lives, or a new one."""
    home, workers = tmp_path_factory.mktemp("workers"), list[Trainer]()

    def living() -> Trainer:
        if not workers or not Path(f"/proc/{workers[-1].pid}/exe").exists():
            workers.append(Trainer(base.path, home, CONFIG))
        return workers[-1]

    yield living
    for worker in workers:
        worker.close()


@pytest.fixture(scope="module")
def unbroken(
    trainer_of: Callable[[], Trainer],
    policy_zero: Path,
    sample_segments: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    root = tmp_path_factory.mktemp("unbroken")
    batches = [root / "0.parquet", root / "1.parquet"]
    for seed, batch in enumerate(batches):
        write_segments(batch, sample_segments(9, seed=seed))
    run = Run(root, batches)
    trainer_of().load(policy_zero)
    for step in range(2):
        assert run.train(trainer_of(), step).steps == STEPS
    assert not (run.checkpoints / "policy-00002.progress").exists(), "a finished iteration needs none"
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sign", "steps_kept"),
    [
        (".policy-00002.progress.next", 0),  # in the write of the checkpoint after 5 steps
        ("policy-00002.progress", 5),  # in a step after that one
        (".policy-00002.next", 10),  # in the write of the checkpoint at the iteration's end
    ],
)
def test_a_kill_changes_no_weight(
    trainer_of: Callable[[], Trainer], unbroken: Run, tmp_path: Path, sign: str, steps_kept: int
) -> None:
    run = Run(tmp_path, unbroken.batches)
    _kill_at(trainer_of(), unbroken, run, run.checkpoints / sign)
    assert not run.policy(2).exists()
    assert not (run.checkpoints / "policy-00002").exists()
    log = trainer_of().log_path
    before = log.read_text()
    trainer_of().load(unbroken.policy(1), unbroken.checkpoints)
    report = run.train(trainer_of(), 1)
    resumed = f"iteration 1 goes on after {steps_kept} of its optimizer steps" in log.read_text()[len(before) :]
    assert resumed == (steps_kept > 0)
    assert report.steps == STEPS
    assert _distance(run.policy(2), unbroken.policy(2)) < 1e-6
    assert _distance(run.policy(2), unbroken.policy(1)) > 1e-3
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["policy-00002"]


def _kill_at(trainer: Trainer, start: Run, run: Run, sign: Path) -> None:
    """Train the second iteration, and kill the worker as soon as `sign` is there."""
    trainer.load(start.policy(1), start.checkpoints)
    died: list[TrainerDied] = []

    def train() -> None:
        try:
            run.train(trainer, 1)
        except TrainerDied as error:
            died.append(error)

    waiting = threading.Thread(target=train)
    waiting.start()
    deadline = time.monotonic() + 120
    while not sign.exists() and time.monotonic() < deadline:
        time.sleep(0.0002)
    os.killpg(trainer.pid, signal.SIGKILL)
    waiting.join(30)
    assert len(died) == 1, f"the iteration ended before {sign} was seen"


def _distance(one: Path, other: Path) -> float:
    first, second = (load_file(folder / "adapter_model.safetensors") for folder in (one, other))
    return max(float((first[name] - second[name]).abs().max()) for name in first)
