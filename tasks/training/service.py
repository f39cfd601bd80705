"""What the worker does for each command: files in, files and a report out.

load -> score -> train -> (the next policy version is in the engine) -> score -> ...
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_contracts.errors import UserError
from data_contracts.store import read_segments
from models.policy import load_base
from tasks.training import distributed
from tasks.training.config import TrainingConfig
from tasks.training.engine import TrainingEngine
from tasks.training.learner import score, train_iteration
from tasks.training.scores import mismatch, read_scores, write_scores


class TrainingService:
    """Base, engine and the commands on them. Every rank runs every command, in a started process group."""

    def __init__(self, base_path: str, config: TrainingConfig) -> None:
        self.config = config
        self.base = load_base(base_path)
        self._engine: TrainingEngine | None = None

    def call(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run one command and return its reply as JSON."""
        commands: dict[str, Callable[..., dict[str, Any]]] = {
            "ping": self.ping,
            "load": self.load,
            "score": self.score,
            "train": self.train,
        }
        return commands[command](**arguments)

    def ping(self) -> dict[str, Any]:
        """Reply when everything is imported and the base is loaded."""
        return {"ranks": distributed.world_size(), "base_digest": self.base.digest}

    def load(self, policy_dir: str, checkpoint_dir: str | None) -> dict[str, Any]:
        """Put a policy version into a fresh engine, with its optimizer state where a checkpoint is given."""
        self.close()
        # ZeRO-3 splits the base's tensors over the ranks, bfloat16 rounds them: such an engine has a base of its own
        shared = self.config.zero_stage < 3 and self.config.precision == "float32"
        base = self.base if shared else load_base(self.base.path)
        self._engine = TrainingEngine(base, Path(policy_dir), self.config)
        if checkpoint_dir is not None:
            self._engine.load_checkpoint(Path(policy_dir), Path(checkpoint_dir))
        return {}

    def score(self, segments_path: str, out_path: str | None, number: int | None) -> dict[str, Any]:
        """Score all segments, write the scores where a path is given, and report the mismatch of version `number`."""
        began, began_cpu = time.monotonic(), time.process_time()
        segments = read_segments(Path(segments_path))
        scores = score(self._loaded(), segments)
        if out_path is not None and distributed.rank() == 0:
            write_scores(Path(out_path), segments, scores)
        report = mismatch(segments, scores, number).model_dump()
        return {**report, "seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - began_cpu}

    def train(
        self, batch_path: str, scores_path: str | None, out_policy_dir: str, checkpoint_dir: str, step: int
    ) -> dict[str, Any]:
        """Train on a batch; without scores it is scored first."""
        segments = read_segments(Path(batch_path))
        engine = self._loaded()
        scores = read_scores(Path(scores_path), segments) if scores_path else score(engine, segments)
        report = train_iteration(
            engine,
            segments,
            scores,
            out_policy_dir=Path(out_policy_dir),
            checkpoint_dir=Path(checkpoint_dir),
            step=step,
        )
        return report.model_dump()

    def close(self) -> None:
        """Let the engine go, if there is one."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def _loaded(self) -> TrainingEngine:
        if self._engine is None:
            raise UserError("no policy is loaded in the trainer: call load() before score() or train().")
        return self._engine
