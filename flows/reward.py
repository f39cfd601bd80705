"""What rollouts were worth: the verified outcome, the advantages it gives, and the model that predicts it.

rollouts.parquet -> hidden checks -> trajectories.parquet -> credit -> batch.parquet;  all of them -> probe
"""

from __future__ import annotations

from prefect import flow

from flows import progress
from flows.branching import branch_values
from flows.recipe import Recipe
from flows.stage import at_work, clock, gate_rows, keep_gates, kept_gates, show_table
from tasks.credit.steps import NO_VALUES, assign_credit
from tasks.reward.steps import fit_reward_model, verify_rollouts
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
            verify_rollouts(here.rollouts, here.trajectories, bench.run.train, bench.verifier_pool, recipe.reward)
    if not here.batch.exists():
        with clock(bench.run, "credit", iteration):
            known = branch_values(bench, recipe, iteration) if recipe.credit.method == "branch" else NO_VALUES
            assign_credit(here.trajectories, here.segments, here.batch, recipe.credit, recipe.reward.weights, known)


@flow(name="reward model", flow_run_name="reward model")
def reward_model(run: str) -> None:
    """Fit the model that predicts the verified outcome on the run's rollouts, and measure how true it is."""
    with at_work(run) as (bench, recipe):
        gates = kept_gates(bench.run.gates / "calibration.json")
        if not gates:
            with clock(bench.run, "reward model"), progress.stage("reward model: fit and calibrate", 1) as tick:
                done = [bench.run.iteration(number) for number in range(recipe.iterations)]
                gates = fit_reward_model(
                    [here.trajectories for here in done],
                    [here.segments for here in done],
                    bench.base.model,
                    bench.run.reward,
                    recipe.reward.probe,
                )
                tick(note="; ".join(f"{gate.name} {gate.verdict}" for gate in gates))
            keep_gates(bench.run, "calibration", gates)
        show_table("calibration", gate_rows(gates), "Is the predicted success rate true?")
