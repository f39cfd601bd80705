"""How good is a policy: two tracks, the training reward beside the verified outcome, per horizon.

verified trajectories of one mode (greedy or sampled) -> EvaluationReport
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from data_contracts.records import HORIZONS, Record, Trajectory
from tasks.evaluation.intervals import clustered_wilson
from tasks.reward.terms import OUTCOME_ONLY, scalar_reward

Mode = Literal["greedy", "sampled"]


class Success(Record):
    """Verified success of one horizon, or of all. Excluded rollouts are counted by status and are in no rate."""

    n: int = Field(description="scorable rollouts")
    problems: int = Field(description="distinct problems among them")
    successes: int
    rate: float | None
    low: float = Field(description="lower end of the 95 % interval")
    high: float = Field(description="upper end of the 95 % interval")
    training_reward: float | None = Field(
        description="mean training reward: the other track, never mixed with the rate"
    )
    excluded: dict[str, int]


class EvaluationReport(Record):
    """One policy in one mode."""

    mode: Mode | None
    policy_versions: tuple[str, ...]
    policy_digests: tuple[str, ...]
    horizons: dict[str, Success] = Field(description="short, medium, long, all")


def mode_of(trajectory: Trajectory) -> Mode:
    """Greedy is temperature 0."""
    return "greedy" if trajectory.sampling.temperature == 0 else "sampled"


def by_mode(trajectories: Iterable[Trajectory]) -> dict[Mode, list[Trajectory]]:
    """Split rollouts into greedy and sampled; a mode without rollouts is absent."""
    found: dict[Mode, list[Trajectory]] = {}
    for trajectory in trajectories:
        found.setdefault(mode_of(trajectory), []).append(trajectory)
    return found


def report(trajectories: Sequence[Trajectory], *, weights: Mapping[str, float] = OUTCOME_ONLY) -> EvaluationReport:
    """Measure the rollouts of one mode; `weights` are those of the training reward's terms.

    Raises ValueError when greedy and sampled rollouts are mixed (see `by_mode`) or a rollout comes twice.
    """
    modes = {mode_of(trajectory) for trajectory in trajectories}
    if len(modes) > 1:
        raise ValueError("greedy and sampled rollouts are mixed: report each mode by itself (by_mode)")
    if len({trajectory.id for trajectory in trajectories}) != len(trajectories):
        raise ValueError("a trajectory id comes twice: each rollout counts once")
    parts = {h: [t for t in trajectories if t.horizon == h] for h in HORIZONS}
    return EvaluationReport(
        mode=modes.pop() if modes else None,
        policy_versions=tuple(sorted({trajectory.policy_version for trajectory in trajectories})),
        policy_digests=tuple(sorted({trajectory.policy_digest for trajectory in trajectories})),
        horizons={**{h: success(part, weights) for h, part in parts.items()}, "all": success(trajectories, weights)},
    )


def success(trajectories: Sequence[Trajectory], weights: Mapping[str, float] = OUTCOME_ONLY) -> Success:
    """Verified success rate with its interval; rollouts of one problem count as one cluster."""
    scored = [trajectory for trajectory in trajectories if trajectory.scorable]
    outcomes = [bool(trajectory.outcome) for trajectory in scored]
    low, high = clustered_wilson(outcomes, [trajectory.problem_id for trajectory in scored])
    rewards = [scalar_reward(trajectory, weights) for trajectory in scored]
    return Success(
        n=len(scored),
        problems=len({trajectory.problem_id for trajectory in scored}),
        successes=sum(outcomes),
        rate=sum(outcomes) / len(scored) if scored else None,
        low=low,
        high=high,
        training_reward=sum(rewards) / len(scored) if scored else None,
        excluded=dict(sorted(Counter(_exclusion(t) for t in trajectories if not t.scorable).items())),
    )


def _exclusion(trajectory: Trajectory) -> str:
    return "not_verified" if trajectory.status in ("completed", "out_of_turns", "out_of_tokens") else trajectory.status
