"""The rollout stage as Prefect tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from prefect import task
from prefect.cache_policies import NO_CACHE

from data_contracts.gates import Gate
from data_contracts.records import Rollout, Sampling
from data_contracts.store import read_trajectories, write_json
from models.chat import Chat
from tasks.problems import admitted
from tasks.rollout.agent import Job
from tasks.rollout.batch import Kept, keep_valid
from tasks.rollout.config import RolloutConfig
from tasks.rollout.engine import Engine
from tasks.rollout.environments import open_session
from tasks.rollout.gate import Explain, contract_gate, digest_gate, infrastructure_gate, mismatch_gate
from tasks.rollout.jobs import jobs_for
from tasks.rollout.journal import Journal
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.scheduler import run_sessions
from tasks.rollout.stream import Stream


class Sampler(Protocol):
    """What sampling needs of the workbench."""

    @property
    def engine(self) -> Engine: ...

    @property
    def chat(self) -> Chat: ...

    @property
    def agent_pool(self) -> WarmPool: ...


class Pass(NamedTuple):
    """How to sample, and the rollout indices to sample each problem under; `sampling.seed` is the run's."""

    sampling: Sampling
    indices: Sequence[int]


class Destination(NamedTuple):
    """Where rollouts go: the journal of finished ones, the accepted ones as two tables, the rest."""

    journal: Path
    rollouts: Path
    segments: Path
    quarantine: Path


@task(name="sample rollouts", cache_policy=NO_CACHE)
def sample_rollouts(
    bench: Sampler,
    problems: Path,
    chosen: Sequence[str],
    out: Destination,
    config: RolloutConfig,
    passes: Sequence[Pass],
    *,
    policy_version: str,
    iteration: int,
    run_id: str,
    on_done: Callable[[Rollout], None] | None = None,
) -> Kept:
    """Attempt each chosen problem in every pass, going on from the journal; what the contract accepts is written."""
    by_id = admitted(problems)
    journal = Journal(out.journal)
    rollouts: list[Rollout] = []
    for sampling, indices in passes:
        tried = [by_id[problem_id] for problem_id in chosen]
        jobs = jobs_for(tried, indices, iteration=iteration, run_id=run_id, seed=sampling.seed)
        rollouts += run_sessions(
            jobs,
            bench.engine,
            bench.chat,
            open_session=lambda problem: open_session(problem, bench.agent_pool),
            policy_version=policy_version,
            sampling=sampling,
            config=config,
            journal=journal,
            on_done=on_done,
        )
    return keep_valid(rollouts, out.rollouts, out.segments, out.quarantine, run_id, iteration)


@task(name="collect rollouts", cache_policy=NO_CACHE)
def collect_rollouts(
    stream: Stream,
    iteration: int,
    jobs: Sequence[Job],
    ahead: Sequence[Job],
    out: Destination,
    on_done: Callable[[Rollout], None],
    window: int | None = None,
) -> Kept:
    """Make the rollouts of an iteration, with jobs ahead in the free places; what the contract accepts is written.

    `window` is what the policy's model can be trained on, in tokens.
    """
    rollouts = stream.collect(iteration, jobs, ahead, on_done)
    return keep_valid(rollouts, out.rollouts, out.segments, out.quarantine, jobs[0].run_id, iteration, window)


@task(name="rollout gate", cache_policy=NO_CACHE)
def gate_rollouts(
    trajectories: Path,
    kept: Kept,
    digests: Mapping[str, str],
    mismatch: Any,
    out: Path,
    config: RolloutConfig,
    explain: Explain | None = None,
) -> list[Gate]:
    """Decide whether the batch may train, and write the verdicts to `out` (.json).

    `explain` is asked when the mismatch (the trainer's report) is over its limits.
    """
    sampled = read_trajectories(trajectories)
    gates = [
        contract_gate(kept.accepted, kept.total, minimum_share=config.minimum_contract_share),
        infrastructure_gate(sampled, maximum_share=config.maximum_infrastructure_share),
        digest_gate(sampled, digests),
        mismatch_gate(
            mismatch.mean_abs_diff,
            mismatch.max_abs_diff,
            n=mismatch.tokens,
            mean_limit=config.maximum_mean_mismatch,
            max_limit=config.maximum_token_mismatch,
            figures=mismatch.figures(),
            explain=explain,
        ),
    ]
    write_json(out, gates)
    return gates
