"""Values by sampling decisions again: from before and from after them, what became of the sessions.

decisions -> points that can be replayed -> jobs -> verified sessions -> mean reward at each point, and the cost
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from data_contracts.records import Record, Segment, Trajectory
from tasks.credit.advantages import Floats
from tasks.credit.decisions import Decision, Kind, points
from tasks.credit.outcome import rewards
from tasks.rollout.agent import Job
from tasks.rollout.branching import BranchJob, NotReplayable, Point, branch_jobs, sampled_turns
from tasks.rollout.scheduler import StartAgent


class BranchPlan(NamedTuple):
    """The sessions to make, the decisions they are for, and how many others cannot be replayed, by reason."""

    jobs: list[BranchJob]
    decisions: list[Decision]
    skipped: dict[str, int]


class BranchReport(Record):
    """What sampling decisions again said, and what it cost."""

    decisions: dict[Kind, int]
    skipped: dict[str, int]
    """decisions that could not be replayed, by reason"""
    sessions: int
    lost: int
    """sessions that their contract refused or that could not be scored"""
    tokens: int
    """sampled in them; the replayed turns' are not among them"""
    values: dict[str, dict[int, float]]
    """by trajectory id, the mean reward of the sessions from before a turn, by its number"""

    @property
    def note(self) -> str:
        """What was left out and why; empty where nothing was."""
        reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(self.skipped.items()))
        total = sum(self.skipped.values())
        return f"{total} of {total + sum(self.decisions.values())} decisions not sampled again: {reasons}" * bool(total)


def plan_branches(
    decisions: Sequence[Decision],
    trajectories: Mapping[str, Trajectory],
    segments: Sequence[Segment],
    jobs: Mapping[str, Job],
    start: StartAgent,
    rollouts: int,
) -> BranchPlan:
    """`rollouts` sessions from each point of the decisions that can be replayed; `jobs` made the trajectories.

    Two decisions may share a point: its sessions are made once.
    """
    parts: dict[str, list[Segment]] = {decision.trajectory_id: [] for decision in decisions}
    for segment in segments:
        if segment.trajectory_id in parts:
            parts[segment.trajectory_id].append(segment)
    made: dict[str, list[BranchJob]] = {}
    kept: list[Decision] = []
    skipped: Counter[str] = Counter()
    for decision in decisions:
        trajectory = trajectories[decision.trajectory_id]
        sampled = sampled_turns(parts[trajectory.id])
        found = [Point(trajectory, sampled, turn) for turn in points(decision, trajectory)]
        of_points = {point.id: branch_jobs(jobs[trajectory.id], point, rollouts) for point in found}
        try:
            # The replay to the later point passes by the earlier.
            start(of_points[found[-1].id][0], "replayable", trajectory.policy_version)
        except NotReplayable as reason:
            skipped[str(reason)] += 1
        else:
            kept.append(decision)
            made |= of_points
    return BranchPlan([job for each in made.values() for job in each], kept, dict(skipped))


def branch_report(plan: BranchPlan, branches: Sequence[Trajectory], weights: Mapping[str, float]) -> BranchReport:
    """`branches` are the verified sessions of the plan that their contract accepted.

    A point none of whose sessions could be scored has no value.
    """
    reward_R: Floats = rewards(branches, weights)
    reward_of = {t.id: reward for t, reward in zip(branches, reward_R.tolist(), strict=True) if t.scorable}
    of_point: dict[tuple[str, int], list[float]] = {}
    for job in plan.jobs:
        if job.trajectory_id in reward_of:
            key = job.point.trajectory.id, job.point.turn
            of_point.setdefault(key, []).append(reward_of[job.trajectory_id])
    values: dict[str, dict[int, float]] = {}
    for (trajectory_id, turn), found in of_point.items():
        values.setdefault(trajectory_id, {})[turn] = sum(found) / len(found)
    live = {job.trajectory_id: job.point.turn for job in plan.jobs}
    return BranchReport(
        decisions=dict(Counter(decision.kind for decision in plan.decisions)),
        skipped=plan.skipped,
        sessions=len(plan.jobs),
        lost=len(plan.jobs) - len(reward_of),
        tokens=sum(turn.completion_tokens for t in branches for turn in t.turns[live[t.id] :]),
        values=values,
    )
