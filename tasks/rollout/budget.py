"""Token budgets by horizon, learned from what recent successes needed.

verified rollouts of the last iterations -> horizon -> tokens;  problem -> the problem within its horizon's budget

A session that has sampled far more than any success before it is most often lost, and what it goes on to sample costs
as much as a success would. The budget is a multiple of the longest recent success, so it can grow again, and never more
than the problem's own limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from data_contracts.records import Horizon, Problem, Trajectory

MINIMUM_SUCCESSES = 20
"""Fewer say little about how long the next one takes: then the problem's own limit holds."""


def learned_budgets(recent: Iterable[Trajectory], slack: float) -> dict[Horizon, int]:
    """Tokens a rollout may sample, for the horizons with at least `MINIMUM_SUCCESSES` verified successes."""
    lengths: dict[Horizon, list[int]] = {}
    for trajectory in recent:
        if trajectory.scorable and trajectory.outcome:
            lengths.setdefault(trajectory.horizon, []).append(trajectory.sampled_tokens)
    return {h: math.ceil(slack * max(of)) for h, of in lengths.items() if len(of) >= MINIMUM_SUCCESSES}


def within(problem: Problem, budgets: Mapping[Horizon, int]) -> Problem:
    """The problem with its horizon's budget, where that is less than its own."""
    tokens = min(problem.limits.tokens, budgets.get(problem.horizon, problem.limits.tokens))
    return problem.model_copy(update={"limits": problem.limits.model_copy(update={"tokens": tokens})})
