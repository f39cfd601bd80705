"""Sessions that branch off a recorded rollout: its first turns come from the record, then they go on live.

rollout + turn -> Point -> BranchJobs -> replaying(start): an agent with those turns behind it -> Scheduler -> Rollouts

A replay runs no tool: what each call came back with is in the record, and so are the files that a turn changed, which
the environment is restored to. It has to come out as recorded, token by token; where a context policy keeps what no
record holds, or a session cannot be restored, it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from data_contracts.records import Segment, ToolCall, Trajectory, Turn
from tasks.rollout.agent import Agent, Job
from tasks.rollout.calls import Answered
from tasks.rollout.engine import Completion
from tasks.rollout.environments.base import Resumable, Snapshot, ToolResult
from tasks.rollout.jobs import job_seed
from tasks.rollout.scheduler import StartAgent


class NotReplayable(Exception):
    """The record does not lead an agent to this point again; the message says why."""


class Sampled(NamedTuple):
    """What a turn sampled, and the context it was sampled from."""

    context: list[int]
    token_ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Point:
    """A recorded rollout before its turn `turn`, which was sampled; `sampled` is of its turns, by their number."""

    trajectory: Trajectory
    sampled: Mapping[int, Sampled]
    turn: int

    @property
    def id(self) -> str:
        return f"{self.trajectory.id}@{self.turn}"


@dataclass(frozen=True, slots=True)
class BranchJob(Job):
    """The `rollout_index`-th session from a point; its group is those from there."""

    point: Point

    @property
    def trajectory_id(self) -> str:
        return f"{self.point.id}/{self.rollout_index}"


def sampled_turns(segments: Sequence[Segment]) -> dict[int, Sampled]:
    """What each turn of one rollout sampled, from its segments."""
    found: dict[int, Sampled] = {}
    for segment in segments:
        places = [t for t, mask in enumerate(segment.loss_mask) if mask]
        for turn, group in groupby(places, key=lambda t: segment.turn_index[t]):
            first, *rest = group
            of_turn = slice(first, first + 1 + len(rest))
            found[turn] = Sampled(
                segment.token_ids[:first], segment.token_ids[of_turn], segment.rollout_logprobs[of_turn]
            )
    return found


def branch_jobs(job: Job, point: Point, rollouts: int) -> list[BranchJob]:
    """The sessions from `point` of the rollout that `job` made, each with a seed of its own, within the same limits."""
    return [
        BranchJob(
            problem=job.problem,
            group_id=point.id,
            rollout_index=index,
            seed=job_seed(job.seed, job.iteration, f"{job.problem.id}@{point.turn}", index),
            iteration=job.iteration,
            run_id=job.run_id,
            point=point,
        )
        for index in range(rollouts)
    ]


def replaying(start: StartAgent) -> StartAgent:
    """`start`, but the agent of a `BranchJob` has the turns before its point behind it."""

    def begin(job: Job, name: str, version: str) -> Agent:
        agent = start(job, name, version)
        if isinstance(job, BranchJob):
            replay(agent, job.point)
        return agent

    return begin


def replay(agent: Agent, point: Point) -> None:
    """Bring a fresh agent to the point, by the record alone.

    Raises NotReplayable where its session cannot be restored, or where what comes out is not what was recorded.
    """
    session = agent.session
    if not isinstance(session, Resumable):
        raise NotReplayable("its environment cannot restore a session")
    state = Snapshot(dict(session.files), session.visible)
    for turn in point.trajectory.turns[: point.turn]:
        calls = _say(agent, point, turn)
        state = Snapshot(turn.after(state.files), turn.visible or state.visible)
        session.restore(state)
        agent.take_results(_answers(turn, calls))
        if agent.status is not None or not _same(agent.turns[-1], turn):
            raise NotReplayable("a turn came out in another way than it was recorded")
    # A policy that put a result outside the context shows its own words there; a replay takes them for the result's.
    if agent.origins != point.trajectory.turns[point.turn].origins:
        raise NotReplayable("its context policy keeps what is not recorded")
    _check_context(agent, point)


def _say(agent: Agent, point: Point, turn: Turn) -> tuple[ToolCall, ...]:
    """Have the agent sample a turn as it was recorded; returns the calls whose results it asks for."""
    _check_context(agent, point, turn.index)
    sampled = point.sampled[turn.index]
    done = Completion(
        token_ids=sampled.token_ids,
        logprobs=sampled.logprobs,
        finish_reason=turn.finish_reason,
        policy_version=turn.policy_version or point.trajectory.policy_version,
        policy_digest=turn.policy_digest,
        prompt_tokens=turn.prompt_tokens,
        cached_tokens=turn.cached_tokens,
        seconds=turn.sample_seconds,
    )
    calls = agent.take_completion(done)
    if agent.turns[-1].calls != turn.calls or len(turn.answers) != len(turn.calls):
        raise NotReplayable("what its calls came back with was not recorded")
    return calls


def _check_context(agent: Agent, point: Point, turn: int | None = None) -> None:
    """The ids that a turn (the point's own) is sampled from are those that it was sampled from."""
    recorded = point.sampled.get(point.turn if turn is None else turn)
    if recorded is None or agent.request().token_ids != recorded.context:
        raise NotReplayable("its context came out in other tokens than it was recorded in")


def _answers(turn: Turn, asked: Sequence[ToolCall]) -> list[Answered]:
    """What the environment answered in a recorded turn; calls that the context policy owns are answered by that."""
    names = {call.name for call in asked}
    starts = [0, *(answer.end + 1 for answer in turn.answers)]
    return [
        Answered(ToolResult(turn.observation[start : answer.end], answer.failed), answer.seconds)
        for call, start, answer in zip(turn.calls, starts, turn.answers, strict=False)
        if call.name in names
    ]


def _same(replayed: Turn, recorded: Turn) -> bool:
    """Whether two turns agree in all that a session knows of them: progress is measured later."""
    return replayed == recorded.model_copy(update={"progress": None})
