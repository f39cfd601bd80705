"""What every stage's flow does the same way: find the run and its bench, take the time, keep gates, show artifacts.

A stage's flow is called with the run's folder (and an iteration), so that it runs alone as well as within
`post_train`. There, iterations call its body (`flow.fn`): a flow run of its own costs 0.4 s of CPU, four of them an
iteration would cost more than the model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from data_contracts.errors import UserError
from data_contracts.gates import Gate
from data_contracts.store import append_jsonl, read_json, write_json
from flows.recipe import Recipe
from tasks.paths import RunFolder
from tasks.workbench import Bench, Parts, open_bench


@contextmanager
def at_work(run: str) -> Iterator[tuple[Bench, Recipe]]:
    """The bench of a run and its recipe, seeds included."""
    folder = RunFolder(Path(run).resolve())
    if not folder.recipe.is_file():
        raise UserError(f"{folder.recipe} does not exist: start the run with `ratchet run RECIPE` first.")
    recipe = Recipe.model_validate_json(folder.recipe.read_text()).seeded()
    with open_bench(folder, parts_of(recipe)) as bench:
        yield bench, recipe


def parts_of(recipe: Recipe) -> Parts:
    """What the bench needs of a recipe."""
    return Parts(
        base=recipe.policy.base,
        start=recipe.policy.start,
        rollout=recipe.rollout,
        reward=recipe.reward,
        training=recipe.training,
        release=recipe.release,
    )


@contextmanager
def clock(run: RunFolder, stage: str, iteration: int | None = None) -> Iterator[None]:
    """Note how long a stage took, once it is done."""
    started = time.perf_counter()
    yield
    line = {"stage": stage, "iteration": iteration, "seconds": round(time.perf_counter() - started, 4)}
    append_jsonl(run.seconds, json.dumps(line))


def keep_gates(run: RunFolder, stage: str, gates: Sequence[Gate]) -> list[Gate]:
    """Keep a stage's gates with the run, for the summary; returns them."""
    write_json(run.gates / f"{stage}.json", list(gates))
    return list(gates)


def kept_gates(path: Path) -> list[Gate]:
    """Gates as they were kept; none where the stage has not decided."""
    return [Gate.model_validate(row) for row in read_json(path)] if path.exists() else []


def show_table(key: str, rows: Sequence[dict[str, Any]], description: str) -> None:
    """A table among the flow run's artifacts."""
    from prefect.artifacts import create_table_artifact

    create_table_artifact(table=[*rows], key=key, description=description)


class LiveTable:
    """A table among the flow run's artifacts that is written over at each look."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._id: UUID | None = None

    def show(self, rows: Sequence[dict[str, Any]], description: str) -> None:
        """Replace what the table holds."""
        from prefect import get_client
        from prefect.artifacts import create_table_artifact
        from prefect.client.schemas.actions import ArtifactUpdate

        if self._id is None:
            self._id = cast(UUID, create_table_artifact(table=[*rows], key=self._key, description=description))
            return
        with get_client(sync_client=True) as client:
            client.update_artifact(self._id, ArtifactUpdate(data=json.dumps([*rows]), description=description))


def show_picture(key: str, png: str, description: str) -> None:
    """A picture (PNG as a data address) among the flow run's artifacts."""
    from prefect.artifacts import create_markdown_artifact

    create_markdown_artifact(markdown=f"![{description}]({png})\n\n{description}", key=key, description=description)


def gate_rows(gates: Sequence[Gate]) -> list[dict[str, Any]]:
    """Gates as rows of a table."""
    return [{"gate": gate.name, "verdict": str(gate.verdict), "evidence": gate.reason} for gate in gates]
