"""One process, two ranks, other micro-batches, other ZeRO stages, packed or padded: the same update."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from data_contracts.errors import UserError
from data_contracts.store import write_segments
from models.policy import Base, init_whole
from tasks.training import distributed
from tasks.training.checkpoints import read_note
from tasks.training.config import TrainingConfig
from tasks.training.service import TrainingService

COMMON = {"learning_rate": 1e-3, "warmup_steps": 0, "minibatches": 2, "threads": 1}
SMALL, LARGE = 45, 100_000
VARIANTS: dict[str, dict[str, Any]] = {
    "packed": {},
    "packed-small": {"micro_batch_tokens": SMALL},
    "padded": {"packed": False, "micro_batch_tokens": LARGE},
    "padded-small": {"packed": False, "micro_batch_tokens": SMALL},
    "zero-3": {"zero_stage": 3, "micro_batch_tokens": SMALL},
    "zero-3-padded": {"zero_stage": 3, "packed": False},
    "checkpointed": {"gradient_checkpointing": True, "micro_batch_tokens": SMALL},
    "zero-3-checkpointed": {"zero_stage": 3, "gradient_checkpointing": True},
    "full": {"weights": "full"},
    "full-padded-small": {"weights": "full", "packed": False, "micro_batch_tokens": SMALL},
    "full-zero-3": {"weights": "full", "zero_stage": 3, "micro_batch_tokens": SMALL},
    "gspo": {"objective": "gspo", "kl_coefficient": 0.1, "packed": False, "micro_batch_tokens": LARGE},
    "gspo-zero-3": {"objective": "gspo", "kl_coefficient": 0.1, "zero_stage": 3, "micro_batch_tokens": SMALL},
}
REFERENCES = {"full": "full", "gspo": "gspo"}
"""What a variant is held against, on one rank, by the first part of its name; else `padded`."""
RESUMED = ("packed-small", "zero-3", "full", "full-zero-3")

SESSION = """
import json, sys
from pathlib import Path
from tasks.training import distributed
from tasks.training.config import TrainingConfig
from tasks.training.service import TrainingService

distributed.start_process_group()
for job in json.loads(Path(sys.argv[1]).read_text()):
    service = TrainingService(job["base"], TrainingConfig(**job["config"]))
    for command, arguments in job["commands"]:
        service.call(command, arguments)
    service.close()
"""

Job = dict[str, Any]


class Trial:
    """Folders of one variant on so many ranks: two iterations, the second perhaps from another trial's first."""

    def __init__(self, root: Path, ranks: int, variant: str) -> None:
        self.ranks, self.variant, self.root = ranks, variant, root / f"{ranks}-{variant}"
        self.config = {**COMMON, **VARIANTS[variant]}

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def policy(self, number: int) -> Path:
        return self.root / f"policy-{number:05d}"

    def job(self, base: str, start: Path, batches: list[Path]) -> Job:
        """Train both iterations with one worker."""
        steps = [["load", {"policy_dir": str(start), "checkpoint_dir": None}]]
        steps += [_train(batch, self.policy(step + 1), self.checkpoints, step) for step, batch in enumerate(batches)]
        return {"base": base, "config": self.config, "commands": steps}

    def resume_of(self, other: Trial, base: str, batch: Path) -> Job:
        """Train the second iteration from the other trial's first: its policy and its optimizer state."""
        load = {"policy_dir": str(other.policy(1)), "checkpoint_dir": str(other.checkpoints)}
        steps = [["load", load], _train(batch, self.policy(3), self.checkpoints, 1)]
        return {"base": base, "config": self.config, "commands": steps}

    def weights(self, number: int) -> dict[str, torch.Tensor]:
        (file,) = self.policy(number).glob("*.safetensors")
        return load_file(file)


def _train(batch: Path, out: Path, checkpoints: Path, step: int) -> list[Any]:
    arguments = {"batch_path": str(batch), "scores_path": None, "out_policy_dir": str(out)}
    return ["train", {**arguments, "checkpoint_dir": str(checkpoints), "step": step}]


def _alone(jobs: list[Job]) -> None:
    distributed.start_process_group()
    for job in jobs:
        service = TrainingService(job["base"], TrainingConfig(**job["config"]))
        for command, arguments in job["commands"]:
            service.call(command, arguments)
        service.close()


def _on_two_ranks(jobs: list[Job], folder: Path) -> None:
    (folder / "session.py").write_text(SESSION)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, str(folder / "session.py"), str(folder / "jobs.json")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.fixture(scope="module")
def trial(
    base: Base, policy_zero: Path, sample_segments: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, str], Trial]:
    """All variants on one and on two ranks, and each of RESUMED once on the other number of ranks."""
    root = tmp_path_factory.mktemp("scale")
    batches = [root / "0.parquet", root / "1.parquet"]
    write_segments(batches[0], sample_segments(7))
    write_segments(batches[1], sample_segments(6, seed=1))
    whole = init_whole(base, root / "whole")
    trials = {(ranks, variant): Trial(root, ranks, variant) for ranks in (1, 2) for variant in VARIANTS}

    def jobs(ranks: int) -> list[Job]:
        return [
            one.job(base.path, whole if "full" in variant else policy_zero, batches)
            for (count, variant), one in trials.items()
            if count == ranks
        ]

    def resumes(ranks: int) -> list[Job]:
        return [trials[ranks, name].resume_of(trials[3 - ranks, name], base.path, batches[1]) for name in RESUMED]

    _alone(jobs(1))
    _on_two_ranks([*jobs(2), *resumes(2)], root)
    _alone(resumes(1))
    return lambda ranks, variant: trials[ranks, variant]


def _distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_update_does_not_depend_on_how_it_is_computed(
    trial: Callable[[int, str], Trial], base: Base, policy_zero: Path, ranks: int, variant: str
) -> None:
    reference = trial(1, REFERENCES.get(variant.split("-")[0], "padded"))
    start = Path(base.path) / "model.safetensors" if "full" in variant else policy_zero / "adapter_model.safetensors"
    for number in (1, 2):
        updated = trial(ranks, variant).weights(number)
        assert _distance(updated, load_file(start)) > 1e-3
        assert _distance(updated, reference.weights(number)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("variant", RESUMED)
def test_a_run_goes_on_with_another_number_of_ranks(
    trial: Callable[[int, str], Trial], ranks: int, variant: str
) -> None:
    written = trial(3 - ranks, variant).checkpoints / "policy-00001"
    assert read_note(written).processes == 3 - ranks
    assert (written / "universal" / "zero" / "optimizer_state.pt").is_file()
    resumed, unbroken = trial(ranks, variant).weights(3), trial(ranks, variant).weights(2)
    assert _distance(resumed, unbroken) < 1e-5
    assert _distance(resumed, trial(ranks, variant).weights(1)) > 1e-4


@pytest.mark.slow
def test_a_checkpoint_of_another_zero_stage_is_refused(trial: Callable[[int, str], Trial], base: Base) -> None:
    written = trial(1, "packed")
    service = TrainingService(base.path, TrainingConfig(**COMMON, zero_stage=3))
    with pytest.raises(UserError, match=r"written under ZeRO-2: set training\.zero_stage to it, not 3"):
        service.call("load", {"policy_dir": str(written.policy(1)), "checkpoint_dir": str(written.checkpoints)})
    service.close()
