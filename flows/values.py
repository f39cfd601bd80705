"""What rollouts were worth in their middle, for credit by turn.

td: verified rollouts so far -> probe, every `td_refit` iterations -> calibration gate -> value at each turn's end
branch: flows/branching.py
"""

from __future__ import annotations

from pathlib import Path

from data_contracts.gates import Gate, Verdict
from data_contracts.store import write_json
from flows import progress
from flows.branching import branch_values
from flows.recipe import Recipe
from flows.stage import kept_gates
from tasks.credit.steps import NO_VALUES, Known, predicted_values
from tasks.reward.config import RewardConfig
from tasks.reward.signals import NOT_ASKED, Proxies
from tasks.reward.steps import fit_reward_model, predicted_outcomes
from tasks.workbench import Bench

NO_ROLLOUTS = "no rollout of this run has been verified yet"


def values(bench: Bench, recipe: Recipe, iteration: int) -> Known:
    """The values that the recipe's credit needs; where they cannot be trusted, none and why, said once a fit."""
    match recipe.credit.method:
        case "td":
            return _predicted(bench, recipe, iteration)
        case "branch":
            known = branch_values(bench, recipe, iteration)
            if iteration == 0 and known.why:
                progress.say(f"branch credit: {known.why}")
            return known
        case _:
            return NO_VALUES


def _predicted(bench: Bench, recipe: Recipe, iteration: int) -> Known:
    """The reward model's values, while its calibration holds; where it does not, none and why."""
    fitted = iteration - iteration % recipe.credit.td_refit
    failed = _fitted(bench, recipe, fitted)
    if failed:
        if iteration == fitted:
            progress.say(f"td credit: {failed}; the whole rollout shares its outcome until the next fit")
        return Known(None, failed)
    here = bench.run.iteration(iteration)
    return predicted_values(bench.run.values(fitted), here.trajectories, here.segments, bench.base)


def proxies(bench: Bench, recipe: Recipe, iteration: int) -> Proxies:
    """The reward model's word on an iteration's rollouts, where the recipe pays for it and its calibration holds."""
    terms = recipe.reward.terms
    if not terms.proxy.enabled or terms.proxy.source != "model":
        return NOT_ASKED
    fitted = iteration - iteration % recipe.credit.td_refit
    if failed := _fitted(bench, recipe, fitted):
        return Proxies({}, failed)
    here = bench.run.iteration(iteration)
    return predicted_outcomes(bench.run.values(fitted), here.trajectories, here.segments, bench.base)


def fit(bench: Bench, config: RewardConfig, stop: int, folder: Path) -> list[Gate]:
    """Fit the reward model on the iterations before `stop`; its files go to `folder`."""
    done = [bench.run.iteration(number) for number in range(stop)]
    return fit_reward_model(
        [here.trajectories for here in done],
        [here.segments for here in done],
        bench.base,
        folder,
        config,
    )


def _fitted(bench: Bench, recipe: Recipe, iteration: int) -> str:
    """Fit the values' model before this iteration where that was not done; why it may not be used, or nothing."""
    if iteration == 0:
        return NO_ROLLOUTS
    folder = bench.run.values(iteration)
    gates = kept_gates(folder / "gates.json")
    if not gates:
        gates = fit(
            bench, recipe.reward.model_copy(update={"probe": recipe.reward.probe.for_values()}), iteration, folder
        )
        write_json(folder / "gates.json", gates)
    return "; ".join(f"{gate.name} {gate.verdict}: {gate.reason}" for gate in gates if gate.verdict is not Verdict.PASS)
