"""What rollouts were worth: the verified outcome, the advantages it gives, and the model that predicts it.

rollouts.parquet -> hidden checks -> trajectories.parquet -> credit -> batch.parquet;  all of them -> probe
"""

from __future__ import annotations

from prefect import flow

from data_contracts.store import write_json
from flows import progress
from flows.recipe import Recipe
from flows.stage import at_work, clock, gate_rows, keep_gates, kept_gates, show_table
from flows.values import fit, values
from tasks.credit.steps import assign_credit
from tasks.reward.steps import verify_rollouts
from tasks.workbench import Bench


@flow(name="reward", flow_run_name="reward {iteration}")
def reward(run: str, iteration: int) -> None:
    """Verify and credit the rollouts of one iteration."""
    with at_work(run) as (bench, recipe):
        judge(bench, recipe, iteration)


def judge(bench: Bench, recipe: Recipe, iteration: int) -> None:
    """Verified outcomes, then advantages, of one iteration."""
    here = bench.run.iteration(iteration)
    if not here.trajectories.exists():
        with clock(bench.run, "reward", iteration):
            verify_rollouts(
                here.rollouts,
                here.trajectories,
                bench.run.train,
                bench.verifier_pool,
                recipe.reward,
                by_turn=recipe.credit.method == "process",
            )
    if not here.batch.exists():
        with clock(bench.run, "credit", iteration):
            known = values(bench, recipe, iteration)
            weights = recipe.reward.weights
            report = assign_credit(here.trajectories, here.segments, here.batch, recipe.credit, weights, known)
            write_json(here.credit, report)


@flow(name="reward model", flow_run_name="reward model")
def reward_model(run: str) -> None:
    """Fit the model that predicts the verified outcome on the run's rollouts, and measure how true it is."""
    with at_work(run) as (bench, recipe):
        gates = kept_gates(bench.run.gates / "calibration.json")
        if not gates:
            with clock(bench.run, "reward model"), progress.stage("reward model: fit and calibrate", 1) as tick:
                gates = fit(bench, recipe, recipe.iterations, bench.run.reward)
                tick(note="; ".join(f"{gate.name} {gate.verdict}" for gate in gates))
            keep_gates(bench.run, "calibration", gates)
        show_table("calibration", gate_rows(gates), "Is the predicted success rate true?")
