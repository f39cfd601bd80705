"""How good is a policy on held-out problems: greedy and sampled, through the engine that serves.

held-out problems -> sessions -> contract -> verified -> report;  before + after -> paired comparison
"""

from __future__ import annotations

from typing import Literal

from prefect import flow

from data_contracts.gates import Gate
from data_contracts.problems import read_pack
from data_contracts.records import Sampling
from data_contracts.store import read_trajectories, write_trajectories
from flows import progress
from flows.recipe import Recipe
from flows.stage import at_work, clock, keep_gates, show_table
from tasks.curriculum.supply import to_evaluate
from tasks.evaluation.report import by_mode
from tasks.evaluation.show import evaluation_rows
from tasks.evaluation.steps import compare_evaluations, report_evaluation
from tasks.reward.steps import verify_rollouts
from tasks.rollout.batch import Kept
from tasks.rollout.gate import contract_gate
from tasks.rollout.steps import Destination, Pass, sample_rollouts
from tasks.workbench import Bench

SideName = Literal["before", "after", "champion"]


@flow(name="evaluation", flow_run_name="evaluation {side}")
def evaluation(run: str, side: SideName) -> None:
    """Measure one side on the held-out problems: the first policy, the last one, or the champion."""
    with at_work(run) as (bench, recipe):
        measure(bench, recipe, side, {"before": 0, "after": recipe.iterations, "champion": None}[side])
        rows = evaluation_rows(bench.run.evaluation(side).report)
        show_table(f"evaluation-{side}", rows, f"Verified success on held-out problems, {side}")


def measure(bench: Bench, recipe: Recipe, side: str, number: int | None) -> None:
    """Measure a policy version of the run, or (None) the champion; the report is the product."""
    if not bench.run.evaluation(side).report.exists():
        with clock(bench.run, f"evaluation {side}"):
            _sample(bench, recipe, side, number)
            _verify(bench, recipe, side, number)


def compare(bench: Bench) -> None:
    """Before against after on the same problems and seeds."""
    if not bench.run.comparison.exists():
        before, after = bench.run.evaluation("before"), bench.run.evaluation("after")
        compare_evaluations(before.trajectories, after.trajectories, bench.run.comparison)


def _sample(bench: Bench, recipe: Recipe, side: str, number: int | None) -> None:
    here, config = bench.run.evaluation(side), recipe.evaluation
    chosen = to_evaluate(read_pack(bench.run.heldout).problems, config.problems)
    passes = [Pass(Sampling(temperature=0.0, seed=config.seed), [0])] if config.greedy else []
    if config.rollouts:
        sampled = Sampling(temperature=config.temperature, seed=config.seed)
        passes.append(Pass(sampled, range(1, config.rollouts + 1)))
    total = len(chosen) * sum(len(one.indices) for one in passes)
    with progress.stage(f"evaluation {side}: sessions", total) as tick:
        kept = sample_rollouts(
            bench,
            bench.run.heldout,
            chosen,
            Destination(here.journal, here.rollouts, here.segments, bench.run.quarantine),
            recipe.rollout,
            passes,
            policy_version=_serve(bench, number),
            iteration=recipe.iterations if number is None else number,
            run_id=bench.run.id,
            on_done=lambda _: tick(),
        )
    keep_gates(bench.run, f"evaluation-{side}", [_gate(kept, recipe, side)])


def _verify(bench: Bench, recipe: Recipe, side: str, number: int | None) -> None:
    here = bench.run.evaluation(side)
    with progress.stage(f"evaluation {side}: hidden checks", len(read_trajectories(here.rollouts))) as tick:
        verify_rollouts(
            here.rollouts, here.trajectories, bench.run.heldout, bench.verifier_pool, recipe.reward, lambda _: tick()
        )
    write_trajectories(here.reference, by_mode(read_trajectories(here.trajectories)).get("sampled", []))
    reports = report_evaluation(here.trajectories, here.report, recipe.reward.weights)
    for mode, report in reports.items():
        figures = {f"evaluation.{mode}.{name}": found.rate for name, found in report.horizons.items()}
        if number is not None:
            bench.tracker.log_metrics(figures, number)


def _serve(bench: Bench, number: int | None) -> str:
    if number is not None:
        return bench.serve(number)
    champion = bench.champion()
    assert champion is not None  # post_train asks for this side only when there is one
    version = f"champion-{champion.version}"
    bench.engine.load_adapter(version, champion.policy_path)
    return version


def _gate(kept: Kept, recipe: Recipe, side: str) -> Gate:
    gate = contract_gate(kept.accepted, kept.total, minimum_share=recipe.rollout.minimum_contract_share)
    return gate.model_copy(update={"name": f"evaluation contract {side}"})
