from __future__ import annotations

import math

import pytest

from data_contracts.records import Limits, ToolCall, Turn
from tasks.reward.config import RewardConfig, TermConfig, TermsConfig
from tasks.reward.terms import reward_terms, scalar_reward

LIMITS = Limits(turns=4, tokens=100)


def turn(index: int, calls: int) -> Turn:
    return Turn(
        index=index,
        completion="",
        completion_tokens=1,
        prompt_tokens=1,
        finish_reason="stop",
        calls=tuple(ToolCall(name="test") for _ in range(calls)),
        policy_digest="d",
    )


def test_terms_of_a_failed_rollout(make_trajectory):
    rollout = make_trajectory(
        outcome=False,
        turns=(turn(0, 1), turn(1, 2)),
        malformed_calls=1,
        sampled_tokens=50,
        visible_passed=2,
        visible_total=3,
    )
    terms = reward_terms(rollout, LIMITS, TermsConfig())
    assert terms == pytest.approx({"outcome": 0.0, "process": 2 / 3, "format": -1 / 4, "cost": -0.5})


def test_terms_of_a_rollout_that_did_nothing(make_trajectory):
    terms = reward_terms(make_trajectory(outcome=True, sampled_tokens=0), LIMITS, TermsConfig())
    assert terms == {"outcome": 1.0, "process": 0.0, "format": 0.0, "cost": 0.0}


def test_terms_are_clipped_to_their_bounds(make_trajectory):
    config = TermsConfig(cost=TermConfig(low=-0.1, high=0.0), outcome=TermConfig(low=0.0, high=0.5, enabled=True))
    terms = reward_terms(make_trajectory(outcome=True, sampled_tokens=90), LIMITS, config)
    assert (terms["outcome"], terms["cost"]) == (0.5, -0.1)


def test_only_the_outcome_counts_by_default(make_trajectory):
    assert RewardConfig().weights == {"outcome": 1.0}
    rollout = make_trajectory(outcome=True, rewards={"outcome": 1.0, "process": 0.5, "cost": -0.5})
    assert scalar_reward(rollout, RewardConfig().weights) == 1.0


def test_enabled_terms_are_weighed(make_trajectory):
    config = RewardConfig(terms={"cost": {"enabled": True, "weight": 0.2}, "process": {"enabled": True, "weight": 2}})
    rollout = make_trajectory(outcome=True, rewards={"outcome": 1.0, "process": 0.5, "cost": -0.5})
    assert scalar_reward(rollout, config.weights) == pytest.approx(1 + 1 - 0.1)


def test_the_unscorable_have_no_terms_and_no_reward(make_trajectory):
    lost = make_trajectory(outcome=None, status="sandbox_error")
    assert reward_terms(lost, LIMITS, TermsConfig()) == {}
    assert math.isnan(scalar_reward(lost))
    assert math.isnan(scalar_reward(make_trajectory(outcome=None)))


def test_bounds_the_wrong_way_round_are_refused():
    with pytest.raises(ValueError, match="smaller bound"):
        TermConfig(low=1.0, high=0.0)
