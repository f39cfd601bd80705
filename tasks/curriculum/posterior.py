"""What we believe of a problem's pass rate: a Beta posterior, whose prior is learnt from problems like it.

tallies of its horizon and tags -> prior;  prior + its own tally -> Beta(alpha, beta)
"""

from __future__ import annotations

from typing import NamedTuple

from data_contracts.records import Horizon, Problem
from tasks.curriculum.config import CurriculumConfig
from tasks.curriculum.state import CurriculumState, Tally, level_keys


class Belief(NamedTuple):
    """A Beta distribution over a problem's pass rate."""

    alpha: float
    beta: float

    @property
    def mean(self) -> float:
        """Expected pass rate."""
        return self.alpha / (self.alpha + self.beta)


def belief(state: CurriculumState, problem: Problem, iteration: int, config: CurriculumConfig) -> Belief:
    """The posterior as of `iteration`; an unseen problem has its prior alone, worth `prior_strength` rollouts."""
    prior = prior_rate(state, problem, iteration, config)
    record = state.problems.get(problem.id)
    own = (record.tally if record else Tally()).at(iteration, config.problem_forgetting)
    strength = config.prior_strength
    return Belief(strength * prior + own.passed, strength * (1 - prior) + own.failed)


def prior_rate(state: CurriculumState, problem: Problem, iteration: int, config: CurriculumConfig) -> float:
    """Pass rate expected of a problem with these tags on this horizon, strictly between 0 and 1.

    The horizon's rate starts from one success and one failure; each tag's rate is shrunk to the horizon's, and the
    prior is their mean.
    """
    horizon_key, *tag_keys = level_keys(problem.horizon, problem.tags)
    horizon = _level(state, horizon_key, iteration, config)
    horizon_rate = (1 + horizon.passed) / (2 + horizon.passed + horizon.failed)
    rates = [_shrunk(_level(state, key, iteration, config), horizon_rate, config.prior_strength) for key in tag_keys]
    return sum(rates) / len(rates) if rates else horizon_rate


def expected_tokens(state: CurriculumState, problem: Problem, iteration: int, config: CurriculumConfig) -> float:
    """Tokens that a rollout of a problem is expected to sample.

    Its own mean, shrunk to its horizon's by `prior_strength` rollouts; where nothing of its horizon is known, half of
    what its limits allow.
    """
    level = _level(state, problem.horizon, iteration, config)
    usual = level.tokens / level.rollouts if level.rollouts else problem.limits.tokens / 2
    record = state.problems.get(problem.id)
    own = (record.tally if record else Tally()).at(iteration, config.problem_forgetting)
    return (config.prior_strength * usual + own.tokens) / (config.prior_strength + own.rollouts)


def success_rate(state: CurriculumState, horizon: Horizon, iteration: int, config: CurriculumConfig) -> float:
    """Recent success rate of a horizon, shrunk towards 0: the ladder moves on evidence, not on its absence."""
    return _shrunk(_level(state, horizon, iteration, config), 0.0, config.prior_strength)


def _level(state: CurriculumState, key: str, iteration: int, config: CurriculumConfig) -> Tally:
    return state.levels.get(key, Tally()).at(iteration, config.level_forgetting)


def _shrunk(tally: Tally, towards: float, strength: float) -> float:
    return (strength * towards + tally.passed) / (strength + tally.passed + tally.failed)
