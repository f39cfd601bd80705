"""Rollouts of one iteration: sampled under the newest policy, held to their contract, scored, gated.

selection -> sessions -> contract -> rollouts.parquet, segments.parquet -> trainer's scores -> rollout gate
"""

from __future__ import annotations

from prefect import flow

from data_contracts.gates import require
from data_contracts.records import Sampling
from data_contracts.store import read_json
from flows.recipe import Recipe
from flows.stage import at_work, clock, gate_rows, kept_gates, show_table
from models.fingerprint import digest_folder
from tasks.rollout.steps import Destination, Pass, gate_rollouts, sample_rollouts
from tasks.training.config import check_sampling
from tasks.training.steps import score_segments
from tasks.workbench import Bench


@flow(name="rollout", flow_run_name="rollout {iteration}")
def rollout(run: str, iteration: int) -> None:
    """Make the rollouts of an iteration again or go on with them; holds when the batch may not train."""
    with at_work(run) as (bench, recipe):
        collect(bench, recipe, iteration)
        gates = kept_gates(bench.run.iteration(iteration).gates)
        show_table("rollout-gates", gate_rows(gates), f"May the rollouts of iteration {iteration} train?")


def collect(bench: Bench, recipe: Recipe, iteration: int) -> None:
    """Sample, score and gate one iteration; the gates' file is the stage's product."""
    here = bench.run.iteration(iteration)
    if not here.gates.exists():
        with clock(bench.run, "rollout", iteration):
            _sample(bench, recipe, iteration)
    require(*kept_gates(here.gates))


def _sample(bench: Bench, recipe: Recipe, iteration: int) -> None:
    here, config = bench.run.iteration(iteration), recipe.rollout
    check_sampling(recipe.training, temperature=config.temperature, top_p=config.top_p)
    sampling = Sampling(temperature=config.temperature, top_p=config.top_p, seed=recipe.seed)
    version = bench.serve(iteration)
    kept = sample_rollouts(
        bench,
        bench.run.train,
        read_json(here.selection)["problem_ids"],
        Destination(here.journal, here.rollouts, here.segments, bench.run.quarantine),
        config,
        [Pass(sampling, range(config.rollouts_per_problem))],
        policy_version=version,
        iteration=iteration,
        run_id=bench.run.id,
    )
    mismatch = score_segments(bench.trainer_at(iteration), here.segments, here.scores)
    digest = digest_folder(bench.policy(iteration))
    gate_rollouts(here.rollouts, kept, digest, mismatch, here.gates, config)
