"""Values for `branch` credit: some decisions of an iteration, sampled again.

verified rollouts + trainer's scores -> decisions -> sessions from before and after them -> verified -> values
"""

from __future__ import annotations

from data_contracts.store import read_json
from flows.recipe import Recipe
from flows.rollout import training_jobs
from tasks.credit.branch import BranchReport
from tasks.credit.steps import Known, choose_branches, report_branches
from tasks.reward.steps import verify_rollouts
from tasks.rollout.steps import Destination, collect_rollouts
from tasks.workbench import Bench


def branch_values(bench: Bench, recipe: Recipe, iteration: int) -> Known:
    """What the sessions sampled again say; they are journaled beside the iteration's, so a killed run goes on."""
    here = bench.run.iteration(iteration)
    if not here.branches.report.exists():
        _sample(bench, recipe, iteration)
    report = BranchReport.model_validate(read_json(here.branches.report))
    return Known(report.values, report.note)


def _sample(bench: Bench, recipe: Recipe, iteration: int) -> None:
    here = bench.run.iteration(iteration)
    branches = here.branches
    with bench.stream.alone():
        bench.serve(iteration)
        jobs = {job.trajectory_id: job for job in training_jobs(bench, recipe, iteration)}
        plan = choose_branches(here, jobs, bench.start_agent, recipe.credit.branch)
        if plan.jobs and not branches.rollouts.exists():
            out = Destination(here.journal, branches.rollouts, branches.segments, bench.run.quarantine)
            collect_rollouts(bench.stream, iteration, plan.jobs, [], out, lambda rollout: None)
    if plan.jobs and not branches.trajectories.exists():
        verify_rollouts(branches.rollouts, branches.trajectories, bench.run.train, bench.verifier_pool, recipe.reward)
    report_branches(plan, branches, recipe.reward.weights)
