"""One batch becomes the next policy version, and what was measured on the way is kept.

batch.parquet -> expectations -> DeepSpeed step -> policies/policy-<i+1> -> metrics.json (the iteration is done)
"""

from __future__ import annotations

import shutil

from prefect import flow

from data_contracts.batches import Ledger
from data_contracts.gates import require
from data_contracts.store import read_json, write_json
from flows.recipe import Recipe
from flows.reward import weights_at
from flows.stage import at_work, clock, kept_gates
from tasks.curriculum.steps import update_curriculum
from tasks.metrics import iteration_metrics
from tasks.reward.signals import Signals
from tasks.training.steps import freeze_batch, train_policy
from tasks.workbench import Bench


@flow(name="training", flow_run_name="training {iteration}")
def training(run: str, iteration: int) -> None:
    """Train on the credited batch of one iteration."""
    with at_work(run) as (bench, recipe):
        learn(bench, recipe, iteration)


def learn(bench: Bench, recipe: Recipe, iteration: int) -> None:
    """Train, let the curriculum know, and write the iteration's metrics, its last product."""
    here = bench.run.iteration(iteration)
    if here.metrics.exists():
        return
    with clock(bench.run, "training", iteration):
        _freeze(bench, iteration)
        report = train_policy(
            bench.trainer_at(iteration),
            here.batch,
            here.scores,
            bench.run.policy(iteration + 1),
            here.checkpoint,
            iteration,
        )
        bench.trained(iteration + 1)
    before = bench.run.iteration(iteration - 1).curriculum if iteration else bench.run.root / "none"
    signal = update_curriculum(
        bench.run.train, here.trajectories, before, here.curriculum, iteration, recipe.curriculum
    )
    metrics = iteration_metrics(
        here.trajectories,
        kept_gates(here.gates),
        report,
        signal,
        weights_at(bench.run, recipe, iteration),
        here.branches.report,
        Signals.model_validate(read_json(here.signals)),
    )
    write_json(here.metrics, metrics)
    bench.tracker.log_metrics(metrics, iteration)
    _forget(bench, iteration)


def _freeze(bench: Bench, iteration: int) -> None:
    """Rows and expectations of the frozen batch, beside the rollout gates."""
    here = bench.run.iteration(iteration)
    frozen = freeze_batch(here.batch, here.trajectories, Ledger(bench.run.batches), iteration)
    names = {gate.name for gate in frozen}
    gates = [*(gate for gate in kept_gates(here.gates) if gate.name not in names), *frozen]
    write_json(here.gates, gates)
    require(*gates)


def _forget(bench: Bench, iteration: int) -> None:
    """Drop the optimizer state that no later start can need."""
    if iteration:
        shutil.rmtree(bench.run.iteration(iteration - 1).checkpoint, ignore_errors=True)
