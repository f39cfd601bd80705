"""Rollouts of one iteration: sampled under the newest policy, held to their contract, scored, gated.

selection -> sessions -> contract -> rollouts.parquet, segments.parquet -> trainer's scores -> rollout gate

With `rollout.max_staleness` the sessions of later iterations are begun early and carried over to newer versions.
"""

from __future__ import annotations

from collections.abc import Callable

from prefect import flow

from data_contracts.gates import require
from data_contracts.records import Horizon, policy_name
from data_contracts.store import read_json, read_segments, read_trajectories
from flows.curriculum import select
from flows.recipe import Recipe
from flows.stage import at_work, clock, gate_rows, kept_gates, show_table
from models.fingerprint import digest_folder
from tasks.problems import admitted
from tasks.rollout.agent import Job
from tasks.rollout.budget import learned_budgets, within
from tasks.rollout.jobs import jobs_for
from tasks.rollout.meter import Meter
from tasks.rollout.steps import Destination, collect_rollouts, gate_rollouts
from tasks.training.config import check_sampling
from tasks.training.reports import MismatchReport
from tasks.training.steps import diagnose_mismatch, rescore_segments, score_segments
from tasks.workbench import Bench

EARLIER_VERSIONS = 4
"""Policy versions before the current one that a mismatch is looked for in."""


@flow(name="rollout", flow_run_name="rollout {iteration}")
def rollout(run: str, iteration: int) -> None:
    """Make the rollouts of an iteration again or go on with them; holds when the batch may not train."""
    with at_work(run) as (bench, recipe):
        collect(bench, recipe, iteration)
        gates = kept_gates(bench.run.iteration(iteration).gates)
        show_table("rollout-gates", gate_rows(gates), f"May the rollouts of iteration {iteration} train?")


def collect(bench: Bench, recipe: Recipe, iteration: int, say: Callable[[str], None] = lambda line: None) -> None:
    """Sample, score and gate one iteration; the gates' file is the stage's product. `say` hears how it gets on."""
    here = bench.run.iteration(iteration)
    if not here.gates.exists():
        with clock(bench.run, "rollout", iteration):
            _sample(bench, recipe, iteration, say)
    require(*kept_gates(here.gates))


def _sample(bench: Bench, recipe: Recipe, iteration: int, say: Callable[[str], None]) -> None:
    here, config = bench.run.iteration(iteration), recipe.rollout
    check_sampling(recipe.training, temperature=config.temperature, top_p=config.top_p)
    later = range(iteration + 1, min(iteration + config.max_staleness, recipe.iterations - 1) + 1)
    for number in later:
        select(bench, recipe, number)
    bench.serve(iteration)
    jobs = training_jobs(bench, recipe, iteration)
    meter = Meter(len(jobs), lambda: bench.stream.running)
    kept = collect_rollouts(
        bench.stream,
        iteration,
        jobs,
        [job for number in later for job in training_jobs(bench, recipe, number)],
        Destination(here.journal, here.rollouts, here.segments, bench.run.quarantine),
        lambda rollout: say(meter.add(rollout)),
        bench.base.window,
    )
    numbers = range(max(0, iteration - config.max_staleness), iteration + 1)
    digests = {policy_name(number): digest_folder(bench.policy(number)) for number in numbers}
    gate_rollouts(
        here.rollouts,
        kept,
        digests,
        _mismatch(bench, iteration),
        here.gates,
        config,
        lambda: _cause_of_mismatch(bench, iteration),
    )


def training_jobs(bench: Bench, recipe: Recipe, iteration: int) -> list[Job]:
    """The rollouts of an iteration, each within its budget."""
    by_id, chosen = admitted(bench.run.train), read_json(bench.run.iteration(iteration).selection)["problem_ids"]
    indices, budgets = range(recipe.rollout.rollouts_per_problem), _budgets(bench, recipe, iteration)
    problems = [within(by_id[problem_id], budgets) for problem_id in chosen]
    return jobs_for(problems, indices, iteration=iteration, run_id=bench.run.id, seed=recipe.seed)


def _budgets(bench: Bench, recipe: Recipe, iteration: int) -> dict[Horizon, int]:
    """From the iterations that were verified when this one's first rollouts might begin."""
    config = recipe.rollout
    stop = iteration - config.max_staleness
    known = range(max(0, stop - config.budget_window), max(0, stop))
    if config.budget_slack is None:
        return {}
    recent = [t for number in known for t in read_trajectories(bench.run.iteration(number).trajectories)]
    return learned_budgets(recent, config.budget_slack)


def _mismatch(bench: Bench, iteration: int) -> MismatchReport:
    """Engine against trainer at every token, under the version that sampled it; writes the scores."""
    here = bench.run.iteration(iteration)
    sampled_by = {n for segment in read_segments(here.segments) for n in segment.policy_numbers or ()}
    older = {
        number: rescore_segments(bench.trainer_scoring(number), here.segments, here.scores_under(number), number)
        for number in sorted(sampled_by - {-1, iteration})
    }
    return score_segments(bench.trainer_at(iteration), here.segments, here.scores, iteration, older)


def _cause_of_mismatch(bench: Bench, iteration: int) -> tuple[str, str]:
    """What a mismatch over its limits points to: the engine may hold the base, or one of the versions before."""
    here, policies = bench.run.iteration(iteration), range(max(0, iteration - EARLIER_VERSIONS), iteration)
    versions = {"the base": None, **{policy_name(number): bench.policy(number) for number in policies}}
    trainer, policy = bench.trainer_at(iteration), bench.policy(iteration)
    found = diagnose_mismatch(trainer, here.segments, here.scores, policy, iteration, versions)
    return found.cause, found.sentence
