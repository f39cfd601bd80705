"""However the flow ends, the trainer's processes end with it; and ranks agree with a single process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from data_contracts.store import write_segments
from models.policy import Base
from tasks.training.client import Trainer, TrainerDied
from tasks.training.config import TrainingConfig

LONG = TrainingConfig(minibatches=1, micro_batch_tokens=60, threads=1, epochs=10_000)

PARENT = """
import sys
from pathlib import Path
from tasks.training.client import Trainer
from tasks.training.config import TrainingConfig

base, policy, folder, config = sys.argv[1:]
trainer = Trainer(base, Path(folder), TrainingConfig.model_validate_json(config))
trainer.load(Path(policy))
print(trainer.pid, flush=True)
trainer.train(Path(folder) / "b.parquet", None, Path(folder) / "policy-00001", Path(folder) / "c", 0)
"""


def _members(group: int) -> list[int]:
    """Process ids of a process group that are not zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def _wait_gone(group: int, seconds: float = 15) -> list[int]:
    deadline = time.monotonic() + seconds
    while (left := _members(group)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def test_closing_ends_a_busy_worker(base: Base, policy_zero: Path, sample_segments, tmp_path: Path) -> None:
    write_segments(tmp_path / "b.parquet", sample_segments(12))
    trainer = Trainer(base.path, tmp_path, LONG)
    trainer.load(policy_zero)
    caught: list[BaseException] = []

    def train() -> None:
        try:
            trainer.train(tmp_path / "b.parquet", None, tmp_path / "policy-00001", tmp_path / "c", 0)
        except TrainerDied as error:
            caught.append(error)

    waiting = threading.Thread(target=train)
    waiting.start()
    time.sleep(1)
    assert _members(trainer.pid) and not caught
    trainer.close()
    waiting.join(20)
    assert not waiting.is_alive()
    assert len(caught) == 1
    assert _wait_gone(trainer.pid) == []
    assert not (tmp_path / "policy-00001").exists()


def test_a_killed_flow_takes_its_busy_worker_along(
    base: Base, policy_zero: Path, sample_segments, tmp_path: Path
) -> None:
    write_segments(tmp_path / "b.parquet", sample_segments(12))
    arguments = [base.path, str(policy_zero), str(tmp_path), LONG.model_dump_json()]
    with subprocess.Popen([sys.executable, "-c", PARENT, *arguments], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        time.sleep(1)
        assert _members(worker)
        os.kill(parent.pid, signal.SIGKILL)
    assert _wait_gone(worker) == []


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_two_ranks_train_what_one_process_trains(
    base: Base, policy_zero: Path, sample_segments, tmp_path: Path, stage: int
) -> None:
    write_segments(tmp_path / "b.parquet", sample_segments(7))
    common = {"learning_rate": 1e-2, "warmup_steps": 0, "minibatches": 2, "micro_batch_tokens": 70, "threads": 1}
    reports, states = [], []
    for processes, zero in ((1, 2), (2, stage)):
        folder = tmp_path / str(processes)
        with Trainer(base.path, folder, TrainingConfig(processes=processes, zero_stage=zero, **common)) as trainer:
            trainer.load(policy_zero)
            reports.append(trainer.train(tmp_path / "b.parquet", None, folder / "policy-00001", folder / "c", 0))
            trainer.load(folder / "policy-00001", folder / "c")
            trainer.train(tmp_path / "b.parquet", None, folder / "policy-00002", folder / "c", 1)
            workers = [int(pid) for pid in _ranks(trainer.pid)]
        assert _wait_gone(trainer.pid) == []
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
        states.append(load_file(folder / "policy-00002" / "adapter_model.safetensors"))
    assert max(float((states[0][name] - states[1][name]).abs().max()) for name in states[0]) < 1e-6
    assert reports[1].loss == pytest.approx(reports[0].loss, abs=1e-6)
    assert reports[1].grad_norm == pytest.approx(reports[0].grad_norm, rel=1e-4)
    assert reports[1].tokens == reports[0].tokens


def _ranks(torchrun: int) -> list[str]:
    return Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()
