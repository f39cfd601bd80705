"""Which way learns most from the same sampled tokens: every arm, some seeds, the same problems.

recipe x seeds x ways -> arms: iterations until the tokens are spent, measured on held-out problems on the way
                      -> success against tokens, and each arm's difference to the reference
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from prefect import flow

from data_contracts.store import read_json, read_trajectories, write_atomic, write_json
from flows import progress
from flows.curriculum import curriculum
from flows.evaluation import measure
from flows.figures import ablation_curve, svg
from flows.iteration import iterate
from flows.preflight import preflight
from flows.recipe import Recipe
from flows.runs import begin, locked
from flows.stage import at_work, show_table
from tasks.evaluation.ablation import ArmSuccess, Point, compare_arms, tokens_to
from tasks.paths import RunFolder
from tasks.workbench import Bench

Subject = Literal["credit", "curriculum"]
REFERENCE: dict[Subject, str] = {"credit": "outcome", "curriculum": "uniform"}
LEVEL = 0.8
"""Success that is waited for."""
NO_END = 10**6
"""Iterations of an arm: as many as its tokens allow."""


class Plan(NamedTuple):
    """What is compared: `seeds` repeats of each arm, `tokens` each, measured `points` times after the start.

    An arm is a credit method or a curriculum's strategy, as the subject says.
    """

    subject: Subject
    arms: tuple[str, ...]
    seeds: int
    tokens: int
    points: int


@flow(name="ablation", flow_run_name="ablation, {recipe.name}")
def ablation(recipe: Recipe, home: str, plan: Plan) -> list[dict[str, Any]]:
    """Run all arms, or go on with them; writes ablation.json and ablation.html, returns the rows."""
    root = folder_of(recipe, Path(home), plan)
    points: list[Point] = []
    for seed in range(recipe.seed, recipe.seed + plan.seeds):
        first = RunFolder(root / f"{plan.arms[0]}-{seed}")
        for arm in plan.arms:
            run = RunFolder(root / f"{arm}-{seed}")
            points += _arm(arm, _recipe_of(recipe, plan.subject, arm, seed), run, first, plan)
            _report(root, points, plan.subject)
    rows = table(points, plan.subject)
    title = f"Verified success on held-out problems after {plan.tokens:,} sampled tokens"
    show_table(f"ablation-{plan.subject}", rows, title)
    return rows


def folder_of(recipe: Recipe, home: Path, plan: Plan) -> Path:
    """The folder that a plan's arms lie in."""
    told = f"{recipe.digest} {plan.subject} {plan.tokens} {plan.points}"
    return home.resolve() / "ablations" / f"{recipe.name}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def table(points: Sequence[Point], subject: Subject) -> list[dict[str, Any]]:
    """The last point of each arm as rows; the difference is to the reference, on the same seeds and problems."""
    found = compare_arms(points, REFERENCE[subject])
    return [
        {
            subject: row.arm,
            "horizon": row.horizon,
            "tokens": f"{row.tokens:,.0f}",
            "n": row.n,
            "success": f"{row.rate:.1%} ({row.low:.1%} to {row.high:.1%})",
            f"against {REFERENCE[subject]}": _difference(row),
            f"tokens to {LEVEL:.0%}, by seed": _spent(tokens_to(points, row.arm, row.horizon, LEVEL)),
        }
        for row in found
        if row.share == 1
    ]


def _spent(tokens: Sequence[float | None]) -> str:
    return " ".join("-" if spent is None else f"{spent:,.0f}" for spent in tokens)


def _difference(row: ArmSuccess) -> str:
    if row.against is None or row.against.difference is None:
        return ""
    return f"{row.against.difference:+.1%} ({row.against.low:+.1%} to {row.against.high:+.1%})"


def _recipe_of(recipe: Recipe, subject: Subject, arm: str, seed: int) -> Recipe:
    section, key = ("credit", "method") if subject == "credit" else ("curriculum", "strategy")
    changed = getattr(recipe, section).model_copy(update={key: arm})
    return recipe.model_copy(update={section: changed, "seed": seed, "iterations": NO_END})


def _arm(arm: str, recipe: Recipe, run: RunFolder, first: RunFolder, plan: Plan) -> list[Point]:
    """One arm with one seed. What does not depend on the arm is taken over from the seed's first one."""
    with locked(run):
        begin(run, recipe)
        if first.root != run.root:
            _take_over(first, run, "problems", "gates", "evaluation/at-0")
        with at_work(str(run.root)) as (bench, seeded):
            preflight(bench, seeded)
            curriculum(str(run.root))
            return [_point(arm, bench, seeded, run, plan, number) for number in range(plan.points + 1)]


def _take_over(first: RunFolder, run: RunFolder, *parts: str) -> None:
    """Copy folders that this arm does not have yet; each appears whole."""
    for part in parts:
        if not (run.root / part).exists():
            scratch = run.root / f".{part.replace('/', '-')}.copy"
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(first.root / part, scratch)
            (run.root / part).parent.mkdir(parents=True, exist_ok=True)
            scratch.replace(run.root / part)


def _point(arm: str, bench: Bench, recipe: Recipe, run: RunFolder, plan: Plan, number: int) -> Point:
    """Go on until this point's share of the tokens is spent, and measure."""
    share = number / plan.points
    name = f"ablation: {arm}, seed {recipe.seed}, {share:.0%} of {plan.tokens:,} tokens"
    with progress.stage(name, int(share * plan.tokens)) as tick:
        iteration, spent = 0, 0
        while spent < share * plan.tokens:
            here = run.iteration(iteration)
            if not here.metrics.exists():
                iterate(bench, recipe, iteration)
            used = _tokens(read_json(here.metrics))
            iteration, spent = iteration + 1, spent + used
            tick(used)
        measure(bench, recipe, f"at-{number}", iteration)
    sampled = read_trajectories(run.evaluation(f"at-{number}").reference)
    return Point(arm=arm, seed=recipe.seed, share=share, tokens=spent, trajectories=tuple(sampled))


def _tokens(metrics: dict[str, Any]) -> int:
    """What an iteration sampled, sessions for credit alone included."""
    return int(metrics["tokens.sampled"]) + int(metrics.get("tokens.branched") or 0)


def _report(root: Path, points: Sequence[Point], subject: Subject) -> None:
    found = compare_arms(points, REFERENCE[subject])
    write_json(root / "ablation.json", [row.model_dump(mode="json") for row in found])
    drawn = [svg(ablation_curve(found, horizon)) for horizon in dict.fromkeys(row.horizon for row in found)]
    write_atomic(
        root / "ablation.html", "<!doctype html><meta charset=utf-8><title>Ablation</title>" + "\n".join(drawn)
    )
