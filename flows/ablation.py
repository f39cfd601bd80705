"""Which credit learns most from the same sampled tokens: every method, some seeds, the same problems.

recipe x seeds x methods -> arms: iterations until the tokens are spent, measured on held-out problems on the way
                         -> success against tokens, and each method's difference to `outcome`
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
from tasks.credit.config import Method
from tasks.evaluation.ablation import ArmSuccess, Point, compare_arms
from tasks.paths import RunFolder
from tasks.workbench import Bench

REFERENCE: Method = "outcome"
NO_END = 10**6
"""Iterations of an arm: as many as its tokens allow."""


class Plan(NamedTuple):
    """What is compared: `seeds` repeats of each method, `tokens` each, measured `points` times after the start."""

    methods: tuple[Method, ...]
    seeds: int
    tokens: int
    points: int


@flow(name="ablation", flow_run_name="ablation of credit, {recipe.name}")
def ablation(recipe: Recipe, home: str, plan: Plan) -> list[dict[str, Any]]:
    """Run all arms, or go on with them; writes ablation.json and ablation.html, returns the rows."""
    root = folder_of(recipe, Path(home), plan)
    points: list[Point] = []
    for seed in range(recipe.seed, recipe.seed + plan.seeds):
        first = RunFolder(root / f"{plan.methods[0]}-{seed}")
        for method in plan.methods:
            points += _arm(_recipe_of(recipe, method, seed), RunFolder(root / f"{method}-{seed}"), first, plan)
            _report(root, points)
    rows = table(compare_arms(points, REFERENCE))
    show_table("ablation-credit", rows, f"Verified success on held-out problems after {plan.tokens:,} sampled tokens")
    return rows


def folder_of(recipe: Recipe, home: Path, plan: Plan) -> Path:
    """The folder that a plan's arms lie in."""
    told = f"{recipe.digest} {plan.tokens} {plan.points}"
    return home.resolve() / "ablations" / f"{recipe.name}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def table(found: Sequence[ArmSuccess]) -> list[dict[str, Any]]:
    """The last point of each arm as rows; the difference is to `outcome`, on the same seeds and problems."""
    return [
        {
            "credit": row.arm,
            "horizon": row.horizon,
            "tokens": f"{row.tokens:,.0f}",
            "n": row.n,
            "success": f"{row.rate:.1%} ({row.low:.1%} to {row.high:.1%})",
            "against outcome": _difference(row),
        }
        for row in found
        if row.share == 1
    ]


def _difference(row: ArmSuccess) -> str:
    if row.against is None or row.against.difference is None:
        return ""
    return f"{row.against.difference:+.1%} ({row.against.low:+.1%} to {row.against.high:+.1%})"


def _recipe_of(recipe: Recipe, method: Method, seed: int) -> Recipe:
    credit = recipe.credit.model_copy(update={"method": method})
    return recipe.model_copy(update={"credit": credit, "seed": seed, "iterations": NO_END})


def _arm(recipe: Recipe, run: RunFolder, first: RunFolder, plan: Plan) -> list[Point]:
    """One method with one seed. What does not depend on the method is taken over from the seed's first arm."""
    with locked(run):
        begin(run, recipe)
        if first.root != run.root:
            _take_over(first, run, "problems", "gates", "evaluation/at-0")
        with at_work(str(run.root)) as (bench, seeded):
            preflight(bench, seeded)
            curriculum(str(run.root))
            return [_point(bench, seeded, run, plan, number) for number in range(plan.points + 1)]


def _take_over(first: RunFolder, run: RunFolder, *parts: str) -> None:
    """Copy folders that this arm does not have yet; each appears whole."""
    for part in parts:
        if not (run.root / part).exists():
            scratch = run.root / f".{part.replace('/', '-')}.copy"
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(first.root / part, scratch)
            (run.root / part).parent.mkdir(parents=True, exist_ok=True)
            scratch.replace(run.root / part)


def _point(bench: Bench, recipe: Recipe, run: RunFolder, plan: Plan, number: int) -> Point:
    """Go on until this point's share of the tokens is spent, and measure."""
    share = number / plan.points
    name = f"ablation: {recipe.credit.method}, seed {recipe.seed}, {share:.0%} of {plan.tokens:,} tokens"
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
    return Point(arm=recipe.credit.method, seed=recipe.seed, share=share, tokens=spent, trajectories=tuple(sampled))


def _tokens(metrics: dict[str, Any]) -> int:
    """What an iteration sampled, sessions for credit alone included."""
    return int(metrics["tokens.sampled"]) + int(metrics.get("tokens.branched") or 0)


def _report(root: Path, points: Sequence[Point]) -> None:
    found = compare_arms(points, REFERENCE)
    write_json(root / "ablation.json", [row.model_dump(mode="json") for row in found])
    drawn = [svg(ablation_curve(found, horizon)) for horizon in dict.fromkeys(row.horizon for row in found)]
    write_atomic(root / "ablation.html", "<!doctype html><meta charset=utf-8><title>Credit</title>" + "\n".join(drawn))
