from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.credit.advantages import discounted_returns, gae, group_advantages, kl_penalty

REWARDS = st.lists(st.one_of(st.none(), st.floats(-5, 5)), min_size=1, max_size=24)
TOKENS = st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=12)
RATE = st.floats(0, 1)


def test_partial_groups_are_centred_each_on_its_own_rows():
    rewards = [1, 0, 1, None, 0, 0, 0, 1]
    advantages = group_advantages(rewards, ["a"] * 4 + ["b"] * 4)
    assert advantages == pytest.approx([1 / 3, -2 / 3, 1 / 3, 0, -0.25, -0.25, -0.25, 0.75], abs=1e-12)
    absent = group_advantages([1, 0, 1, 0, 0, 0, 1], ["a"] * 3 + ["b"] * 4)
    assert absent == pytest.approx([1 / 3, -2 / 3, 1 / 3, -0.25, -0.25, -0.25, 0.75], abs=1e-12)


def test_groups_may_be_interleaved_and_of_unequal_size():
    advantages = group_advantages([1, 0, 0, 0, 1, 0, 1], list("abababa"))
    assert advantages == pytest.approx([0.25, 0, -0.75, 0, 0.25, 0, 0.25])


def test_one_rollout_votes_once_whatever_its_turns():
    assert group_advantages([1, 0, 1, 0], [7] * 4) == pytest.approx([0.5, -0.5, 0.5, -0.5])


def test_leave_one_out_centres_on_the_others():
    assert group_advantages([1, 0, 0, 0], [0] * 4, baseline="leave_one_out") == pytest.approx(
        [1, -1 / 3, -1 / 3, -1 / 3]
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_a_lone_outlier_stays_bounded_under_std(dtype, baseline):
    rewards = np.array([0.0] + [0.95] * 7, dtype=dtype)
    advantages = group_advantages(rewards, [0] * 8, baseline=baseline, scale="std")
    assert advantages.dtype == np.float64
    factor = 1 if baseline == "leave_one_out" else 7 / 8
    # Sample variance .95^2 / 8, so that the outlier is -sqrt(8) and each of the others sqrt(8) / 7.
    assert advantages == pytest.approx(factor * np.array([-(8**0.5)] + [8**0.5 / 7] * 7), abs=1e-6)


def test_a_std_below_the_floor_is_replaced_by_it():
    advantages = group_advantages([0.5, 0.5, 0.5, 0.502], [0] * 4, scale="std", std_floor=0.1)
    assert advantages == pytest.approx([-0.005, -0.005, -0.005, 0.015], abs=1e-9)


def test_equal_rewards_give_exactly_nothing():
    assert (group_advantages([0.1] * 7, [0] * 7, scale="std") == 0).all()


def test_unscorable_rows_are_neither_zero_rewards_nor_nan():
    assert group_advantages([None, -1, -1, None], [0] * 4).tolist() == [0, 0, 0, 0]
    assert group_advantages([None, -1, -2, None], [0] * 4, scale="std") == pytest.approx([0, 0.5**0.5, -(0.5**0.5), 0])
    assert group_advantages([None, None, 3.0], [0, 0, 1]).tolist() == [0, 0, 0]
    assert group_advantages([], []).tolist() == []


@pytest.mark.parametrize(
    ("rewards", "groups", "kwargs", "words"),
    [
        ([float("inf"), 0], [0, 0], {}, "infinite"),
        ([1, 0], [0], {}, "one of each"),
        ([1, 0], [0, 0], {"baseline": "median"}, "median"),
        ([1, 0], [0, 0], {"scale": "std", "std_floor": 0}, "floor"),
    ],
)
def test_group_advantages_refuse_what_they_cannot_mean(rewards, groups, kwargs, words):
    with pytest.raises(ValueError, match=words):
        group_advantages(rewards, groups, **kwargs)


@settings(deadline=None)
@given(REWARDS, st.data(), st.sampled_from(["mean", "leave_one_out"]), st.sampled_from(["none", "std"]))
def test_group_advantages_are_bounded_and_follow_their_rows(rewards, data, baseline, scale):
    groups = data.draw(st.lists(st.integers(0, 3), min_size=len(rewards), max_size=len(rewards)))
    order = data.draw(st.permutations(range(len(rewards))))
    advantages = group_advantages(rewards, groups, baseline=baseline, scale=scale)
    permuted = group_advantages([rewards[i] for i in order], [groups[i] for i in order], baseline=baseline, scale=scale)
    assert permuted == pytest.approx(advantages[order], abs=1e-9)
    assert np.isfinite(advantages).all()
    largest = max(groups.count(group) for group in groups)
    assert np.abs(advantages).max() <= (largest**0.5 + 1e-9 if scale == "std" else 10 + 1e-9)
    for group in set(groups):
        assert sum(a for a, g in zip(advantages, groups, strict=True) if g == group) == pytest.approx(0, abs=1e-8)


def test_the_reward_crosses_tool_tokens_undimmed():
    assert discounted_returns([0, 0, 0, 0, 0, 1], [1, 1, 0, 0, 1, 1], 1.0).tolist() == [1, 1, 0, 0, 1, 1]
    assert discounted_returns([0, 0, 0, 0, 2], [1, 1, 0, 0, 1], 0.5).tolist() == [0.5, 1, 0, 0, 2]


def test_kl_of_tool_tokens_stays_out_of_the_returns():
    mask = [1, 0, 0, 1]
    returns = discounted_returns(kl_penalty([1, 1, 1, 1], mask, 1.0), mask, 0.9)
    assert returns == pytest.approx([-1.9, 0, 0, -1])


def test_a_reward_on_an_observation_belongs_to_the_last_sampled_token():
    assert gae([0, 0, 1], [0, 0, 0], [1, 1, 0], 0.0, 0.95).tolist() == [0, 1, 0]
    assert discounted_returns([0, 3, 0, 1], [1, 0, 0, 1], 0.5).tolist() == [3.5, 0, 0, 1]
    assert discounted_returns([9, 0, 1], [0, 1, 1], 1.0).tolist() == [0, 1, 1]


def test_gae_against_hand_computed_figures():
    # Sampled values .5, .25 with gamma .9, lam .8: deltas .1 + .9*.25 - .5 and 1 - .25, first + .72 * second.
    advantages = gae([0.1, 0, 1], [0.5, float("nan"), 0.25], [1, 0, 1], 0.9, 0.8)
    assert advantages == pytest.approx([-0.175 + 0.72 * 0.75, 0, 0.75])


def test_nothing_sampled_gives_nothing():
    assert gae([1, 1], [0, 0], [0, 0], 1, 1).tolist() == [0, 0]
    assert discounted_returns([], [], 1).tolist() == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: discounted_returns([float("nan")], [1], 1.0), "not finite"),
        (lambda: discounted_returns([1, 2], [1], 1.0), "positions"),
        (lambda: discounted_returns([1], [0.5], 1.0), "0 and 1"),
        (lambda: discounted_returns([1], [1], 1.1), "gamma"),
        (lambda: gae([1], [float("nan")], [1], 1.0, 1.0), "value"),
        (lambda: gae([1], [1, 2], [1], 1.0, 1.0), "values"),
    ],
)
def test_token_numerics_refuse_what_they_cannot_mean(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@settings(deadline=None)
@given(TOKENS, RATE, RATE, st.data())
def test_inserted_observations_change_no_advantage(tokens, gamma, lam, data):
    rewards, values = (list(column) for column in zip(*tokens, strict=True))
    first, *gaps = data.draw(st.lists(st.integers(0, 3), min_size=len(tokens) + 1, max_size=len(tokens) + 1))
    mask = [0] * first + [bit for gap in gaps for bit in [1] + [0] * gap]
    sampled = np.flatnonzero(mask)
    padded_rewards, padded_values = np.zeros(len(mask)), np.full(len(mask), np.nan)
    padded_rewards[sampled], padded_values[sampled] = rewards, values
    ones = [1] * len(tokens)
    for plain, padded in (
        (gae(rewards, values, ones, gamma, lam), gae(padded_rewards, padded_values, mask, gamma, lam)),
        (discounted_returns(rewards, ones, gamma), discounted_returns(padded_rewards, mask, gamma)),
    ):
        assert padded[sampled].tolist() == plain.tolist()
        assert (np.delete(padded, sampled) == 0).all()


@settings(deadline=None)
@given(TOKENS, RATE, st.data())
def test_a_return_is_the_sum_over_later_sampled_tokens(tokens, gamma, data):
    rewards = [reward for reward, _ in tokens]
    mask = data.draw(st.lists(st.integers(0, 1), min_size=len(tokens), max_size=len(tokens)))
    sampled = [t for t, bit in enumerate(mask) if bit]
    expected = [0.0] * len(mask)
    for k, start in enumerate(sampled):
        ends = [*sampled[k + 1 :], len(mask)]
        spans = zip(sampled[k:], ends, strict=True)
        expected[start] = sum(gamma**j * sum(rewards[a:b]) for j, (a, b) in enumerate(spans))
    assert discounted_returns(rewards, mask, gamma) == pytest.approx(expected, abs=1e-9)


@settings(deadline=None)
@given(TOKENS, RATE, st.data())
def test_gae_without_values_at_lam_one_is_the_discounted_return(tokens, gamma, data):
    rewards = [reward for reward, _ in tokens]
    mask = data.draw(st.lists(st.integers(0, 1), min_size=len(tokens), max_size=len(tokens)))
    returns = discounted_returns(rewards, mask, gamma)
    assert gae(rewards, [0] * len(tokens), mask, gamma, 1.0) == pytest.approx(returns, abs=1e-12)
