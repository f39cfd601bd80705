"""The credit stage as Prefect tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from prefect import task
from prefect.cache_policies import NO_CACHE

from data_contracts.store import read_json, read_segments, read_trajectories, write_json, write_segments
from models.policy import Base
from tasks.credit.assign import CreditReport, assign, credit_report
from tasks.credit.branch import BranchPlan, branch_report, plan_branches
from tasks.credit.config import BranchConfig, CreditConfig
from tasks.credit.decisions import choose_decisions, turn_entropies
from tasks.credit.td import values_by
from tasks.credit.values import Values
from tasks.paths import Branches, Iteration
from tasks.reward.probe import open_reward_model
from tasks.reward.signals import NO_SIGNALS, Signals
from tasks.rollout.agent import Job
from tasks.rollout.scheduler import StartAgent
from tasks.training.scores import read_scores


class Known(NamedTuple):
    """The values that credit has: None where there are none, and why."""

    values: Values | None
    why: str = ""


NO_VALUES = Known(None)


@task(name="credit", cache_policy=NO_CACHE)
def assign_credit(
    trajectories: Path,
    segments: Path,
    batch: Path,
    config: CreditConfig,
    weights: dict[str, float],
    known: Known = NO_VALUES,
    signals: Path | None = None,
) -> CreditReport:
    """Write the segments of verified trajectories with their advantages to `batch`.

    A method that needs values falls back to `outcome` where there are none; the report says why. `signals` is what
    terms beside the outcome say.
    """
    rollouts = read_trajectories(trajectories)
    if config.needs_values and known.values is None:
        config = config.model_copy(update={"method": "outcome"})
    said = Signals.model_validate(read_json(signals)) if signals else NO_SIGNALS
    tokens = read_segments(segments)
    write_segments(batch, assign(rollouts, tokens, config, weights=weights, values=known.values, signals=said))
    return credit_report(rollouts, config, weights=weights, values=known.values, note=known.why, signals=said)


@task(name="values", cache_policy=NO_CACHE)
def predicted_values(folder: Path, trajectories: Path, segments: Path, base: Base) -> Known:
    """What the reward model in `folder` says of each turn's end."""
    probe, model = open_reward_model(base, folder)
    return Known(values_by(probe, model, read_trajectories(trajectories), read_segments(segments)))


@task(name="choose decisions", cache_policy=NO_CACHE)
def choose_branches(here: Iteration, jobs: Mapping[str, Job], start: StartAgent, config: BranchConfig) -> BranchPlan:
    """The decisions of a scored and verified iteration to sample again, and the sessions for that."""
    rollouts, segments = read_trajectories(here.trajectories), read_segments(here.segments)
    scores = read_scores(here.scores, segments)
    chosen = choose_decisions(rollouts, turn_entropies(segments, [score.entropy for score in scores]), config)
    return plan_branches(chosen, {t.id: t for t in rollouts}, segments, jobs, start, config.rollouts)


@task(name="branch values", cache_policy=NO_CACHE)
def report_branches(plan: BranchPlan, branches: Branches, weights: Mapping[str, float]) -> None:
    """Write what the verified sessions say of the decisions, and what they cost."""
    done = read_trajectories(branches.trajectories) if plan.jobs else []
    write_json(branches.report, branch_report(plan, done, weights))
