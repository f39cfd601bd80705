"""The flow's side of the trainer: one worker process (or a launcher's), started at once, spoken to in turn.

Trainer(base, home, config) -> load -> score -> train -> ... -> close: the whole process group is gone
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from data_contracts.errors import UserError
from tasks.training.channel import Channel
from tasks.training.config import TrainingConfig
from tasks.training.launch import launch_command
from tasks.training.reports import Diagnosis, MismatchReport, TrainingDiverged, TrainReport

_GRACE_SECONDS = 3.0
_TAIL_LINES = 30


class TrainerDied(RuntimeError):
    """The worker process ended in mid-run; the message carries the end of its log."""


class Trainer:
    """The training worker. The constructor returns at once; the first command waits for its imports.

    `home` receives `trainer.log` and `trainer.json`. Commands are answered one at a time, whichever thread asks.
    A hostfile that does not serve is a UserError.
    """

    def __init__(self, base_path: Path | str, home: Path, config: TrainingConfig) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.log_path = home / "trainer.log"
        config_file = home.resolve() / "trainer.json"
        config_file.write_text(config.model_dump_json())
        self._lock = threading.Lock()
        self._last_id = 0
        self._channel = Channel()
        command = launch_command(base_path, config_file, self._channel.path, config)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(config),
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the worker (or of the launcher), which leads its own process group."""
        return self._process.pid

    def wait_ready(self) -> str:
        """Wait until the worker has imported everything and loaded the base; return the base's digest."""
        return self._call("ping")["base_digest"]

    def load(self, policy_dir: Path, checkpoint_dir: Path | None = None) -> None:
        """Make `policy_dir` the policy in training, with the optimizer state saved for it in `checkpoint_dir`.

        Without a checkpoint the optimizer starts afresh.
        """
        self._call("load", policy_dir=str(policy_dir), checkpoint_dir=str(checkpoint_dir) if checkpoint_dir else None)

    def score(
        self,
        segments_path: Path,
        out_path: Path | None = None,
        number: int | None = None,
        older: Mapping[int, Path] | None = None,
    ) -> MismatchReport:
        """Write the current policy's log-probabilities and entropies of all segments to `out_path` (Parquet), if given.

        Tokens that another version than `number` sampled are compared under its own scores, which `older` names (what
        `rescore` wrote), and left out of the report where it does not.
        """
        arguments = {
            "segments_path": str(segments_path),
            "out_path": str(out_path) if out_path else None,
            "number": number,
            "older": {str(version): str(path) for version, path in (older or {}).items()},
        }
        return MismatchReport(**self._call("score", **arguments))

    def rescore(self, segments_path: Path, out_path: Path, number: int) -> None:
        """Write the scores of the segments with tokens that version `number` sampled, which is the loaded one."""
        self._call("rescore", segments_path=str(segments_path), out_path=str(out_path), number=number)

    def diagnose(
        self, segments_path: Path, scores_path: Path, policy_dir: Path, number: int, versions: Mapping[str, Path | None]
    ) -> Diagnosis:
        """Say what the difference between scores and rollouts points to; takes a dozen forwards over 32 segments.

        `policy_dir` is version `number`, which the scores are of; `versions` are others that the engine may have held,
        by name (None: the base alone).
        """
        arguments = {
            "segments_path": str(segments_path),
            "scores_path": str(scores_path),
            "policy_dir": str(policy_dir),
            "number": number,
            "versions": {name: str(path) if path else None for name, path in versions.items()},
        }
        return Diagnosis(**self._call("diagnose", **arguments))

    def train(
        self, batch_path: Path, scores_path: Path | None, out_policy_dir: Path, checkpoint_dir: Path, step: int
    ) -> TrainReport:
        """Train on `batch_path` (segments with advantages), with the scores as old log-probabilities.

        Writes `<checkpoint_dir>/<name of out_policy_dir>`, then `out_policy_dir`; that policy stays loaded. `step`
        is the iteration's number from 0: it decides the order of minibatches and the warm-up.
        """
        reply = self._call(
            "train",
            batch_path=str(batch_path),
            scores_path=str(scores_path) if scores_path else None,
            out_policy_dir=str(out_policy_dir),
            checkpoint_dir=str(checkpoint_dir),
            step=step,
        )
        return TrainReport(**reply)

    def close(self) -> None:
        """End the worker and every process of its group, busy or idle. May be called twice, and from any thread."""
        self._channel.close()
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _call(self, command: str, **arguments: Any) -> dict[str, Any]:
        with self._lock:
            self._last_id += 1
            request = {"id": self._last_id, "command": command, "arguments": arguments}
            self._send(json.dumps(request).encode() + b"\n")
            answer = self._answer(self._last_id)
        if "reply" in answer:
            return answer["reply"]
        kind = UserError if answer["error"]["kind"] == UserError.__name__ else TrainingDiverged
        raise kind(answer["error"]["message"])

    def _send(self, line: bytes) -> None:
        if self._channel.closed:
            raise TrainerDied("the trainer is closed: make a new one.")
        try:
            self._channel.send(line, self._alive)
        except ConnectionError as error:
            raise self._died() from error

    def _answer(self, wanted: int) -> dict[str, Any]:
        # answers to commands whose caller was interrupted are still on their way: theirs is a lower id
        while True:
            try:
                answer = json.loads(self._channel.read_line())
            except ConnectionError as error:
                raise self._died() from error
            if answer["id"] == wanted:
                return answer

    def _alive(self) -> bool:
        return self._process.poll() is None

    def _died(self) -> TrainerDied:
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        tail = self.log_path.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        text = "\n".join(tail)
        return TrainerDied(
            f"the trainer's process ended (exit code {self._process.returncode}); the end of {self.log_path}:\n{text}"
        )

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _environment(config: TrainingConfig) -> dict[str, str]:
    # -m would put the current folder, whatever lies in it, before the installed packages
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
    if config.threads:
        environment["OMP_NUM_THREADS"] = str(config.threads)
    return environment
