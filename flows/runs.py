"""Which folder a command works in, and what state its run is in.

home + recipe -> RunFolder <home>/<name>-<digest>[-k], run.json, a lock while the run goes on
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from data_contracts.errors import UserError
from flows.recipe import Recipe
from tasks.paths import RunFolder

State = Literal["running", "finished", "held", "failed", "cancelled"]


def choose_run(home: Path, recipe: Recipe, *, fresh: bool = False) -> RunFolder:
    """The folder for this recipe: the latest run of it, or the first or next free one. Nothing is written."""
    stem = f"{recipe.name}-{recipe.digest[:8]}"
    latest, number = None, 1
    while (home / _numbered(stem, number)).exists():
        latest = RunFolder(home.resolve() / _numbered(stem, number))
        number += 1
    if latest is not None and not fresh:
        return latest
    return RunFolder(home.resolve() / _numbered(stem, number))


def begin(run: RunFolder, recipe: Recipe, because: str = "") -> None:
    """Make the folder with its recipe, or find it again, and mark it as running."""
    from data_contracts.store import write_atomic

    if not run.recipe.exists():
        write_atomic(run.recipe, recipe.model_dump_json(indent=1) + "\n")
    mark(run, "running", **({"because": because} if because else {}))


def mark(run: RunFolder, state: State, **facts: Any) -> None:
    """Write the run's state; `created` and `because` stay what they were."""
    from data_contracts.store import write_json

    now = datetime.now(UTC).isoformat(timespec="seconds")
    kept = {key: value for key, value in state_of(run).items() if key in ("created", "because")}
    write_json(run.state, {"id": run.id, "state": state, "created": now, **kept, "changed": now, **facts})


def state_of(run: RunFolder) -> dict[str, Any]:
    """What run.json says; empty before the run began."""
    if not run.state.is_file():
        return {}
    found: dict[str, Any] = json.loads(run.state.read_text())
    return found


def all_runs(home: Path) -> list[dict[str, Any]]:
    """The states of all runs under a home, oldest first; one that says running and holds no lock was interrupted."""
    found = []
    for folder in sorted(home.glob("*/run.json")):
        run = RunFolder(folder.parent)
        state = state_of(run)
        if state.get("state") == "running" and not _held(run):
            state["state"] = "interrupted"
        found.append(state | {"iterations": len(list(run.root.glob("iterations/*/metrics.json")))})
    return sorted(found, key=lambda state: str(state.get("created")))


@contextmanager
def locked(run: RunFolder) -> Iterator[None]:
    """Hold the run for this process; a second one is told so. The system frees it when the holder dies."""
    run.root.mkdir(parents=True, exist_ok=True)
    with (run.root / "lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"{run.root} is being worked on by another process: wait for it, or start another with --fresh."
            raise UserError(message) from error
        yield


def _held(run: RunFolder) -> bool:
    lock = run.root / "lock"
    if not lock.exists():
        return False
    with lock.open() as handle:  # the exporter may only read
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _numbered(stem: str, number: int) -> str:
    return stem if number == 1 else f"{stem}-{number}"
