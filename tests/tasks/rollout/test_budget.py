"""Budgets learned from recent successes: by hand."""

from __future__ import annotations

from collections.abc import Callable

from data_contracts.records import Limits, Problem, Trajectory
from tasks.rollout.budget import MINIMUM_SUCCESSES, learned_budgets, within

Make = Callable[..., Trajectory]


def successes(make: Make, n: int, longest: int, **changes: object) -> list[Trajectory]:
    return [make("p", i, sampled_tokens=longest - i, **changes) for i in range(n)]


def test_a_budget_is_a_multiple_of_the_longest_verified_success(make_trajectory: Make) -> None:
    longer = [
        make_trajectory("p", 90, sampled_tokens=400, outcome=False),
        make_trajectory("p", 91, sampled_tokens=500, outcome=None, status="engine_error"),
    ]
    recent = successes(make_trajectory, MINIMUM_SUCCESSES, 101) + longer
    recent += successes(make_trajectory, MINIMUM_SUCCESSES - 1, 300, horizon="medium")
    assert learned_budgets(recent, 1.5) == {"short": 152}
    assert learned_budgets(recent, 1.0) == {"short": 101}
    assert learned_budgets([], 1.5) == {}


def test_a_problem_keeps_its_own_limit_where_that_is_less(make_problem: Callable[..., Problem]) -> None:
    problem = make_problem("a", turns=5, tokens=200)
    assert within(problem, {"short": 152}).limits == Limits(turns=5, tokens=152)
    assert within(problem, {"short": 300}) == problem
    assert within(problem, {"medium": 10}) == problem
