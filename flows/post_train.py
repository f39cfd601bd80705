"""The whole loop, top to bottom: what a recipe becomes.

curriculum -> evaluation before -> iterations of (select -> rollout -> reward -> training) -> reward model
-> evaluation after -> release -> canary -> drift -> summary

Each stage leaves its product in the run's folder and is skipped when that is there: run it again after a kill, and it
goes on from what was done.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.exceptions import TerminationSignal

from data_contracts.gates import GateHeld
from flows import progress
from flows.canary import canary
from flows.curriculum import curriculum
from flows.drift import drift
from flows.evaluation import compare, evaluation
from flows.figures import curve_png
from flows.iteration import iterate
from flows.preflight import preflight
from flows.recipe import Recipe
from flows.records import record_end, record_start
from flows.release import against, first_champion, release
from flows.report import write_report
from flows.reward import reward_model
from flows.runs import begin, choose_run, locked, mark, state_of
from flows.stage import at_work, show_picture, show_table
from flows.summary import learning_note, learning_rows, write_summary
from tasks.paths import RunFolder


@flow(name="post_train", flow_run_name="{recipe.name}")
def post_train(recipe: Recipe, home: str = "runs", run: str | None = None, because: str = "") -> dict[str, Any]:
    """Post-train the recipe's policy and release it if it is measured to be better; returns the summary.

    `run` names a run's folder to go on with; without it, an unfinished run of this recipe is, or a new one begins.
    `because` is kept with the run: what started it, where no person did.
    """
    folder = RunFolder(Path(run).resolve()) if run else _folder(Path(home), recipe)
    with locked(folder), _marked(folder):
        begin(folder, recipe, because)
        held = _stages(str(folder.root))
        summary = write_summary(folder, held.gate if held else None)
        write_report(folder, summary)
        record_end(folder, summary)
        mark(folder, "held" if held else "finished", **({"why": str(held)} if held else {}))
    if held:
        raise held
    return summary


def _stages(run: str) -> GateHeld | None:
    """All stages in order, until the end or the gate that held."""
    with at_work(run) as (bench, recipe):
        preflight(bench, recipe)
        record_start(bench, recipe)
        try:
            curriculum(run)
            evaluation(run, "before")
            first_champion(bench, recipe)
            for start in range(0, recipe.iterations, recipe.round):
                if not bench.run.iteration(min(start + recipe.round, recipe.iterations) - 1).metrics.exists():
                    learning(run, start)
            reward_model(run)
            evaluation(run, "after")
            compare(bench)
            if not bench.run.release.exists() and against(bench) == "champion":
                evaluation(run, "champion")
            release(run)
            canary(run)
            drift(run)
        except GateHeld as held:
            return held
    return None


@flow(name="learning", flow_run_name="iterations from {start}")
def learning(run: str, start: int) -> None:
    """A round of iterations: those from `start` that are not done."""
    with at_work(run) as (bench, recipe):
        stop = min(start + recipe.round, recipe.iterations)
        with progress.stage(f"iterations {start} to {stop - 1}", stop - start) as tick:
            for iteration in range(start, stop):
                iterate(bench, recipe, iteration, lambda line: tick(0, note=line))
                tick(note=learning_note(bench.run, start))
        rows = learning_rows(bench.run)
        show_table("learning", rows[start:stop], f"Iterations {start} to {stop - 1}")
        show_picture("learning-curve", curve_png(rows), "Verified success of the training rollouts, by horizon")


@contextmanager
def _marked(folder: RunFolder) -> Iterator[None]:
    """Whatever ends a run early is said in its state."""
    ended = False
    try:
        yield
        ended = True
    finally:
        if not ended:
            _mark_ended(folder, sys.exception())


def _mark_ended(folder: RunFolder, error: BaseException | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        mark(folder, "cancelled", why=str(error) or "Ctrl-C")
    elif isinstance(error, TerminationSignal):
        mark(folder, "cancelled", why="SIGTERM, which is also how `ratchet up` cancels")
    else:
        mark(folder, "failed", why=f"{type(error).__name__}: {error}")


def _folder(home: Path, recipe: Recipe) -> RunFolder:
    latest = choose_run(home, recipe)
    ended = state_of(latest).get("state") in ("finished", "held")
    return choose_run(home, recipe, fresh=ended)
