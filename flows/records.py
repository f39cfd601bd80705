"""What MLflow keeps of a run: settings, data sets, sample trajectories as traces, the report.

run folder -> the MLflow run of the same name
"""

from __future__ import annotations

from typing import Any

from data_contracts.problems import read_pack
from data_contracts.records import Trajectory
from data_contracts.store import read_trajectories
from flows.recipe import Recipe
from flows.stage import at_work
from models.release import file_digest
from tasks.paths import RunFolder
from tasks.workbench import Bench

TRACES = 12
"""Trajectories of each evaluation that become traces."""


def record_start(bench: Bench, recipe: Recipe) -> None:
    """The recipe, once."""
    bench.tracker.log_params(recipe.model_dump(mode="json"))


def record_end(run: RunFolder, summary: dict[str, Any]) -> None:
    """Data sets, traces, the summary and the report; then the MLflow run is closed."""
    with at_work(str(run.root)) as (bench, _):
        for path, context in ((run.train, "training"), (run.heldout, "evaluation")):
            if path.exists():
                bench.tracker.log_dataset(path.stem, path, file_digest(path), context)
        _trace(bench)
        bench.tracker.set_tags({"ratchet.state": str(summary["state"]), "ratchet.recipe": str(summary["recipe"])})
        for path in (run.summary, run.report):
            bench.tracker.log_artifacts(path)
        bench.tracker.finish()


def _trace(bench: Bench) -> None:
    """Some sampled sessions before and after: the same problems, so that they can be compared."""
    if not bench.run.heldout.exists():
        return
    prompts = {problem.id: problem.prompt for problem in read_pack(bench.run.heldout).problems}
    for side in ("before", "after"):
        path = bench.run.evaluation(side).reference
        chosen = sample(read_trajectories(path) if path.exists() else [], TRACES)
        bench.tracker.log_trajectory_traces([(t, prompts.get(t.problem_id)) for t in chosen])


def sample(trajectories: list[Trajectory], count: int) -> list[Trajectory]:
    """Evenly spread ones, so that every horizon is among them; the same of equal lists."""
    step = max(1, len(trajectories) // count)
    return trajectories[::step][:count]
