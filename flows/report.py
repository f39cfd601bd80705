"""report.html: one page that shows a run to whoever was not there; only the pages of Data Docs are files beside it.

run folder + summary -> figures, gates, sessions turn by turn -> HTML
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_contracts.problems import read_pack
from data_contracts.records import HORIZONS, Trajectory
from data_contracts.store import read_json, read_trajectories, write_atomic
from flows import figures
from flows.recipe import Recipe
from flows.summary import failure_rows, learning_rows, sentinel_rows
from tasks.curriculum.failures import MEANS
from tasks.paths import RunFolder, Sessions

TEMPLATE = Path(__file__).parent / "templates" / "report.html"


def write_report(run: RunFolder, summary: dict[str, Any]) -> Path:
    """Write the run's report.html and return its path."""
    from jinja2 import Environment, StrictUndefined

    recipe = Recipe.model_validate_json(run.recipe.read_text())
    rows = learning_rows(run)
    limits = {"mean": recipe.rollout.maximum_mean_mismatch, "max": recipe.rollout.maximum_token_mismatch}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = lambda value: "-" if value is None else f"{value:.1%}"
    page = environment.from_string(TEMPLATE.read_text()).render(
        summary=summary,
        parts=[part for part in (*HORIZONS, "all") if _measured(summary, part)],
        figures=[
            figures.svg(figures.learning_curve(rows, summary["success"])),
            figures.svg(figures.reward_and_outcome(rows)),
            figures.svg(figures.groups_curve(rows)),
            figures.svg(figures.mismatch_curve(rows, limits)),
            figures.svg(figures.mismatch_along(rows, "position", "eighth of the sampled tokens")),
            figures.svg(figures.mismatch_along(rows, "turn", "turn")),
            *([figures.svg(figures.reliability_curve(read_json(run.calibration)))] if run.calibration.exists() else []),
        ],
        failures=failure_rows(rows),
        failure_means={kind.replace("_", " "): meaning for kind, meaning in MEANS.items()},
        sentinel=sentinel_rows(run),
        sessions=_sessions(run),
        batch=_last_batch(run),
        expectations=[page.relative_to(run.root).as_posix() for page in sorted(run.batches.glob("*.html"))],
        recipe=recipe.model_dump_json(indent=1),
    )
    write_atomic(run.report, page)
    return run.report


def _measured(summary: dict[str, Any], part: str) -> bool:
    return any(side.get(part, {}).get("n") for side in summary["success"].values())


def _sessions(run: RunFolder) -> list[dict[str, Any]]:
    """Problems that were failed before and solved after, one a horizon, both attempts; then others, up to three."""
    if not run.evaluation("after").trajectories.exists() or not run.evaluation("before").trajectories.exists():
        return []
    problems = {problem.id: problem for problem in read_pack(run.heldout).problems}
    sides = [run.evaluation(side).trajectories for side in ("before", "after")]
    before, after = ({_key(t): t for t in read_trajectories(path)} for path in sides)
    both = [key for key in after if key in before and key[1] in problems]
    both.sort(key=lambda key: (not (after[key].outcome and not before[key].outcome), -len(after[key].turns)))
    chosen: list[Any] = []
    for horizon in HORIZONS:
        chosen += [key for key in both if after[key].horizon == horizon][:1]
    shown = []
    for key in chosen:
        problem = problems[key[1]]
        pair = [_session("before", before[key]), _session("after", after[key])]
        shown.append({"problem": problem, "attempts": pair})
    return shown


def _last_batch(run: RunFolder) -> dict[str, Any] | None:
    """Every session that the last iteration trained on, by problem; None before any iteration was judged."""
    judged = [path for path in sorted(run.root.glob("iterations/*")) if Sessions(path).trajectories.exists()]
    if not judged:
        return None
    by_problem: dict[str, list[Trajectory]] = {}
    for trajectory in read_trajectories(Sessions(judged[-1]).trajectories):
        by_problem.setdefault(trajectory.problem_id, []).append(trajectory)
    groups = [
        {
            "problem": name,
            "horizon": rollouts[0].horizon,
            "solved": sum(bool(rollout.outcome) for rollout in rollouts),
            "attempts": [_session(str(rollout.rollout_index), rollout) for rollout in rollouts],
        }
        for name, rollouts in by_problem.items()
    ]
    return {"iteration": int(judged[-1].name), "groups": groups}


def _key(trajectory: Trajectory) -> tuple[float, str, int]:
    return trajectory.sampling.temperature, trajectory.problem_id, trajectory.rollout_index


def _session(side: str, trajectory: Trajectory) -> dict[str, Any]:
    return {
        "side": side,
        "policy": trajectory.policy_version,
        "status": trajectory.status.replace("_", " "),
        "outcome": trajectory.outcome,
        "tokens": trajectory.sampled_tokens,
        "rewards": trajectory.rewards,
        "turns": trajectory.turns,
    }
