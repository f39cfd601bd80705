"""The terms of the training reward, and their weighted sum.

verified trajectory -> terms by name (bounded, before weights) -> one scalar

`outcome` is verified; the rest are proxies and stay in columns of their own. In every term more is better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from data_contracts.records import Limits, Trajectory
from tasks.reward.config import TermsConfig

OUTCOME_ONLY: Mapping[str, float] = MappingProxyType({"outcome": 1.0})
"""The default weights: nothing but the verified outcome."""


def reward_terms(trajectory: Trajectory, limits: Limits, config: TermsConfig) -> dict[str, float]:
    """All terms of a scorable rollout, each clipped to its bounds; none for a rollout that cannot be scored.

    Terms that are switched off are recorded too (they show what a proxy would have said) and weigh nothing.
    """
    if not trajectory.scorable:
        return {}
    raw = {
        "outcome": float(bool(trajectory.outcome)),
        "process": _process(trajectory),
        "format": -_malformed_share(trajectory),
        "cost": -_budget_share(trajectory, limits),
    }
    return {name: min(max(raw[name], term.low), term.high) for name, term in config.items().items()}


def scalar_reward(trajectory: Trajectory, weights: Mapping[str, float] = OUTCOME_ONLY) -> float:
    """Weighted sum of the recorded terms; NaN for a rollout that cannot be scored.

    Raises ValueError when a weighed term was not recorded: the rollout did not pass the reward stage.
    """
    if not trajectory.scorable:
        return math.nan
    missing = weights.keys() - trajectory.rewards.keys()
    if missing:
        raise ValueError(f"trajectory {trajectory.id} has no reward term {sorted(missing)}: run the reward stage first")
    return math.fsum(weight * trajectory.rewards[name] for name, weight in weights.items())


def _process(trajectory: Trajectory) -> float:
    if trajectory.visible_passed is None or not trajectory.visible_total:
        return 0.0
    return trajectory.visible_passed / trajectory.visible_total


def _malformed_share(trajectory: Trajectory) -> float:
    calls = trajectory.malformed_calls + sum(len(turn.calls) for turn in trajectory.turns)
    return trajectory.malformed_calls / calls if calls else 0.0


def _budget_share(trajectory: Trajectory, limits: Limits) -> float:
    return (trajectory.sampled_tokens / limits.tokens + len(trajectory.turns) / limits.turns) / 2
