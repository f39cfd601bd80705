"""What the worker does for each command: files in, files and a report out.

load -> score -> train -> (the next policy version is in the engine) -> score -> ...
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_contracts.errors import UserError
from data_contracts.records import Segment
from data_contracts.store import read_segments
from models.policy import load_base
from tasks.training import distributed
from tasks.training.config import TrainingConfig
from tasks.training.diagnosis import diagnose
from tasks.training.engine import TrainingEngine
from tasks.training.learner import score, train_iteration
from tasks.training.packing import computed_length
from tasks.training.scores import mismatch, of_version, read_scores, write_scores


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
            "rescore": self.rescore,
            "diagnose": self.diagnose,
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

    def score(
        self, segments_path: str, out_path: str | None, number: int | None, older: dict[str, str]
    ) -> dict[str, Any]:
        """Score all segments, write the scores where a path is given, and report the mismatch of version `number`.

        `older` are the scores of tokens that older versions sampled, number -> file.
        """
        began, began_cpu = time.monotonic(), time.process_time()
        segments = self._read(segments_path)
        scores = score(self._loaded(), segments)
        if out_path is not None and distributed.rank() == 0:
            write_scores(Path(out_path), segments, scores)
        report = mismatch(segments, scores, number, {int(n): Path(path) for n, path in older.items()}).model_dump()
        return {**report, "seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - began_cpu}

    def rescore(self, segments_path: str, out_path: str, number: int) -> dict[str, Any]:
        """Score the segments with tokens that version `number` sampled, which is the loaded one; write the scores."""
        segments = of_version(self._read(segments_path), number)
        scores = score(self._loaded(), segments)
        if distributed.rank() == 0:
            write_scores(Path(out_path), segments, scores)
        return {}

    def diagnose(
        self, segments_path: str, scores_path: str, policy_dir: str, number: int, versions: dict[str, str | None]
    ) -> dict[str, Any]:
        """Say what the difference between scores (of version `number`) and rollouts points to."""
        segments = self._read(segments_path)
        found = None
        if distributed.rank() == 0:
            found = diagnose(
                self.base,
                segments,
                read_scores(Path(scores_path), segments),
                policy=Path(policy_dir),
                number=number,
                versions={name: Path(path) if path else None for name, path in versions.items()},
                temperature=self.config.temperature,
            ).model_dump()
        reply: dict[str, Any] = distributed.share(found)
        return reply

    def train(
        self, batch_path: str, scores_path: str | None, out_policy_dir: str, checkpoint_dir: str, step: int
    ) -> dict[str, Any]:
        """Train on a batch; without scores it is scored first."""
        segments = self._read(batch_path)
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

    def _read(self, path: str) -> list[Segment]:
        """The segments of a file; one that is longer than the model's window is a UserError."""
        segments, window = read_segments(Path(path)), self.base.window
        for segment in segments:
            if computed_length(segment) > window:
                raise UserError(
                    f"{path}: segment {segment.trajectory_id}/{segment.index} needs {computed_length(segment)} tokens "
                    f"of context, the model has {window}: lower the problems' token limits, or drop that rollout."
                )
        return segments

    def _loaded(self) -> TrainingEngine:
        if self._engine is None:
            raise UserError("no policy is loaded in the trainer: call load() before score() or train().")
        return self._engine
