"""Finished rollouts on disk, one JSON line each, so that a killed run goes on from them.

add(rollouts) -> lines under one fsync;  open again -> finished(id)
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from data_contracts.errors import UserError
from data_contracts.records import Rollout
from data_contracts.store import append_jsonl, read_jsonl


class Journal:
    """An append-only file of rollouts. A line that a kill tore is dropped: that rollout is made again."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        lines = read_jsonl(self.path)
        self.torn = lines.torn
        self._finished: dict[str, Rollout] = {}
        for number, row in enumerate(lines.rows, start=1):
            rollout = self._rollout(row, number)
            self._finished.setdefault(rollout.trajectory.id, rollout)

    def __len__(self) -> int:
        return len(self._finished)

    @property
    def ids(self) -> list[str]:
        """Ids of the rollouts that are done, in the order in which they ended."""
        return list(self._finished)

    def finished(self, trajectory_id: str) -> Rollout | None:
        """The rollout of that id, if it is done."""
        return self._finished.get(trajectory_id)

    def add(self, *rollouts: Rollout) -> None:
        """Keep finished rollouts; they are on disk when this returns. One id is kept once."""
        for rollout in rollouts:
            if rollout.trajectory.id in self._finished:
                raise ValueError(f"rollout {rollout.trajectory.id} is in the journal already")
        append_jsonl(self.path, *(rollout.model_dump_json() for rollout in rollouts))
        self._finished.update((rollout.trajectory.id, rollout) for rollout in rollouts)

    def _rollout(self, row: object, number: int) -> Rollout:
        try:
            return Rollout.model_validate(row)
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(str(part) for part in problem["loc"])
            message = f"{self.path}:{number}: no rollout ({field}: {problem['msg']}): remove that line and start again"
            raise UserError(message) from error
