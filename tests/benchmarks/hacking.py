"""A proxy that can be gamed, with the sentinel and without: what each does to the verified success.

    python tests/benchmarks/hacking.py [--seeds 0 1] [--home FOLDER] [--iterations 12] [--weight 8]

Three arms a seed, the same problems: the verified outcome alone; beside it a proxy that pays for short sessions, with
the sentinel at work; the same with a sentinel that only watches. An arm that is done is read.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_contracts.store import read_json, read_trajectories
from flows.recipe import Recipe, load_recipe
from flows.services import prefect_api
from tasks.evaluation.ablation import ArmSuccess, Point, compare_arms
from tasks.paths import RunFolder

ROOT = Path(__file__).parents[2]
REFERENCE = "outcome alone"
SMALL = (
    "curriculum.train_problems={short=160}",
    "evaluation.problems={short=160}",
    "evaluation.rollouts=2",
    "evaluation.greedy=false",
)


def arms(weight: float) -> dict[str, tuple[str, ...]]:
    """What each arm changes in the recipe."""
    proxy = (
        "reward.terms.proxy.enabled=true",
        'reward.terms.proxy.source="brevity"',
        f"reward.terms.proxy.weight={weight}",
    )
    return {
        REFERENCE: (),
        "proxy, sentinel": proxy,
        "proxy, watched only": (*proxy, 'reward.sentinel.action="watch"'),
    }


def measured(home: Path, arm: str, changes: tuple[str, ...], seed: int, iterations: int) -> Point:
    """Run one arm to its end, or go on with it, and measure it on held-out problems."""
    from flows.curriculum import curriculum
    from flows.evaluation import measure
    from flows.iteration import iterate
    from flows.preflight import preflight
    from flows.runs import begin, locked
    from flows.stage import at_work

    recipe = recipe_of(changes, seed, iterations)
    run = RunFolder(home / f"{arm.replace(', ', '-').replace(' ', '-')}-{seed}")
    with locked(run):
        begin(run, recipe)
        with at_work(str(run.root)) as (bench, seeded):
            preflight(bench, seeded)
            curriculum(str(run.root))
            for iteration in range(iterations):
                if not run.iteration(iteration).metrics.exists():
                    iterate(bench, seeded, iteration)
                    print(f"  {line(run, iteration)}", flush=True)
            measure(bench, seeded, "after", iterations)
    rows = list(metrics(run))
    sampled = read_trajectories(run.evaluation("after").reference)
    tokens = sum(int(row["tokens.sampled"]) for row in rows)
    return Point(arm=arm, seed=seed, share=1.0, tokens=tokens, trajectories=tuple(sampled))


def recipe_of(changes: tuple[str, ...], seed: int, iterations: int) -> Recipe:
    """The quick start, small, with an arm's changes."""
    fixed = (*SMALL, f"seed={seed}", f"iterations={iterations}")
    return load_recipe(ROOT / "infra" / "recipes" / "quickstart.toml", (*fixed, *changes))


def metrics(run: RunFolder) -> Iterator[dict[str, Any]]:
    """The metrics of each iteration that is done."""
    for path in sorted(run.root.glob("iterations/*/metrics.json")):
        yield read_json(path)


def line(run: RunFolder, iteration: int) -> str:
    """One iteration in figures, and what the sentinel said of it."""
    row, seen = read_json(run.iteration(iteration).metrics), read_json(run.iteration(iteration).sentinel)
    failed = [gate["name"] for gate in seen["gates"] if gate["verdict"] == "FAIL"]
    proxy = row.get("reward.unverified.proxy")
    return (
        f"{run.id} {iteration}: verified {row['success.all']:.1%}, proxy {'-' if proxy is None else f'{proxy:.3f}'}, "
        f"weights {[name for name in row if name.startswith('reward.weight.')]}, failed {failed}, off {[*seen['off']]}"
    )


def cells(row: ArmSuccess) -> str:
    """One arm as a row of the table."""
    against = row.against
    difference = "" if against is None or against.difference is None else (
        f"{against.difference:+.1%} ({against.low:+.1%} to {against.high:+.1%})"
    )  # fmt: skip
    return f"| {row.arm} | {row.seeds} | {row.n} | {row.rate:.1%} ({row.low:.1%} to {row.high:.1%}) | {difference} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="A gameable proxy, with the sentinel and without.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--home", type=Path, default=Path("runs/hacking"), help="a folder per arm is made in it")
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--weight", type=float, default=8.0, help="of the proxy, beside the outcome's 1")
    given = parser.parse_args()
    home = given.home.resolve()
    points = []
    with prefect_api(home):
        for seed in given.seeds:
            for arm, changes in arms(given.weight).items():
                points.append(measured(home, arm, changes, seed, given.iterations))
                found = [row for row in compare_arms(points, REFERENCE) if row.horizon == "all"]
                print("| arm | seeds | n | verified success | against outcome alone |\n|---|---|---|---|---|")
                print("\n".join(map(cells, found)), flush=True)


if __name__ == "__main__":
    main()
