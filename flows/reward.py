"""What rollouts were worth: the verified outcome, the advantages it gives, and the model that predicts it.

rollouts.parquet -> hidden checks -> trajectories.parquet -> signals, sentinel -> credit -> batch.parquet
trajectories of all iterations -> reward model
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from data_contracts.gates import Gate, Verdict, require
from data_contracts.store import read_json, write_json
from flows import progress
from flows.recipe import Recipe
from flows.stage import at_work, clock, gate_rows, keep_gates, kept_gates, show_table
from flows.values import fit, proxies, values
from tasks.credit.steps import assign_credit
from tasks.paths import RunFolder
from tasks.reward.sentinel import SentinelReport
from tasks.reward.signals import NOT_ASKED
from tasks.reward.steps import tell_signals, verify_rollouts, watch_rewards
from tasks.workbench import Bench


@flow(name="reward", flow_run_name="reward {iteration}")
def reward(run: str, iteration: int) -> None:
    """Verify and credit the rollouts of one iteration."""
    with at_work(run) as (bench, recipe):
        judge(bench, recipe, iteration)


def judge(bench: Bench, recipe: Recipe, iteration: int) -> None:
    """Verified outcomes, what the other terms say, the sentinel's look at both, then advantages, of one iteration."""
    here = bench.run.iteration(iteration)
    if not here.trajectories.exists():
        with clock(bench.run, "reward", iteration):
            verify_rollouts(
                here.rollouts,
                here.trajectories,
                bench.run.train,
                bench.verifier_pool,
                recipe.reward,
                by_turn=recipe.credit.method == "process" or recipe.reward.terms.process.enabled,
            )
    if not here.sentinel.exists():
        with clock(bench.run, "sentinel", iteration):
            _watch(bench, recipe, iteration)
    if recipe.reward.sentinel.action == "hold":
        require(*(gate for gate in sentinel_gates(here.sentinel) if gate.verdict is Verdict.FAIL))
    if not here.batch.exists():
        with clock(bench.run, "credit", iteration):
            known, weights = values(bench, recipe, iteration), weights_at(bench.run, recipe, iteration)
            report = assign_credit(
                here.trajectories, here.segments, here.batch, recipe.credit, weights, known, here.signals
            )
            write_json(here.credit, report)


def weights_at(run: RunFolder, recipe: Recipe, iteration: int) -> dict[str, float]:
    """The weights that an iteration is credited by: the recipe's, less the terms that are off once it was looked at.

    The sentinel looks before credit is given, so that not even the iteration it fails is trained on what was gamed.
    """
    seen = run.iteration(iteration).sentinel
    off = read_json(seen)["off"] if seen.exists() else {}
    return {name: weight for name, weight in recipe.reward.weights.items() if name not in off}


def sentinel_gates(path: Path) -> list[Gate]:
    """What the sentinel said of one iteration; nothing where it has not looked."""
    return list(SentinelReport.model_validate(read_json(path)).gates) if path.exists() else []


def _watch(bench: Bench, recipe: Recipe, iteration: int) -> None:
    here, before = bench.run.iteration(iteration), bench.run.iteration(iteration - 1).sentinel
    weights = weights_at(bench.run, recipe, iteration - 1)
    said = proxies(bench, recipe, iteration) if "proxy" in weights else NOT_ASKED
    tell_signals(here.trajectories, bench.run.train, here.signals, recipe.reward.terms, said)
    report = watch_rewards(here.trajectories, bench.run.train, here.signals, weights, before, recipe.reward.sentinel)
    write_json(here.sentinel, report)
    for name in report.off.keys() & weights.keys():
        progress.say(f"sentinel: reward term {name} is off from iteration {iteration} on: {report.off[name]}")


@flow(name="reward model", flow_run_name="reward model")
def reward_model(run: str) -> None:
    """Fit the model that predicts the verified outcome on the run's rollouts, and measure how true it is."""
    with at_work(run) as (bench, recipe):
        gates = kept_gates(bench.run.gates / "calibration.json")
        if not gates:
            with clock(bench.run, "reward model"), progress.stage("reward model: fit and calibrate", 1) as tick:
                gates = fit(bench, recipe.reward, recipe.iterations, bench.run.reward)
                tick(note="; ".join(f"{gate.name} {gate.verdict}" for gate in gates))
            keep_gates(bench.run, "calibration", gates)
        show_table("calibration", gate_rows(gates), "Is the predicted success rate true?")
