"""The verified terms of the training reward, and what a rollout is worth in all.

verified trajectory -> outcome, process (bounded, before weights);  + the proxy's word -> one scalar

Verified terms stay with the trajectory; what is not verified lies in a file of its own (`tasks/reward/signals.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from data_contracts.records import Trajectory
from tasks.reward.config import TermConfig, TermsConfig

OUTCOME_ONLY: Mapping[str, float] = MappingProxyType({"outcome": 1.0})
"""The default weights: nothing but the verified outcome."""

SHAPING = ("process", "format", "cost")
"""Terms that are differences of a potential: over a rollout they add up to the same for all rollouts of a problem."""

NOTHING_SAID: Mapping[str, float] = MappingProxyType({})


def reward_terms(trajectory: Trajectory, config: TermsConfig) -> dict[str, float]:
    """The verified terms of a scorable rollout, each clipped to its bounds; none where it cannot be scored.

    Terms that are switched off are recorded too, and weigh nothing.
    """
    if not trajectory.scorable:
        return {}
    share = (trajectory.hidden_passed or 0) / trajectory.hidden_total if trajectory.hidden_total else 0.0
    return {
        "outcome": clipped(float(bool(trajectory.outcome)), config.outcome),
        "process": clipped(share, config.process),
    }


def scalar_reward(
    trajectory: Trajectory,
    weights: Mapping[str, float] = OUTCOME_ONLY,
    proxies: Mapping[str, float] = NOTHING_SAID,
) -> float:
    """The weighed outcome, plus the weighed proxy by trajectory id where it spoke; NaN where it cannot be scored.

    Shaping is left out: it is the same for all rollouts of a problem. Raises ValueError when the outcome was not
    recorded: the rollout did not pass the reward stage.
    """
    if not trajectory.scorable:
        return math.nan
    if "outcome" in weights and "outcome" not in trajectory.rewards:
        raise ValueError(f"trajectory {trajectory.id} has no reward term 'outcome': run the reward stage first")
    verified = weights.get("outcome", 0.0) * trajectory.rewards.get("outcome", 0.0)
    return verified + weights.get("proxy", 0.0) * proxies.get(trajectory.id, 0.0)


def clipped(value: float, term: TermConfig) -> float:
    """The value within the term's bounds."""
    return min(max(value, term.low), term.high)
