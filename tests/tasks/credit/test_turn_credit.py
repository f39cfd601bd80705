"""Credit by turn: process, td, branch and the charge for malformed calls, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_contracts.errors import UserError
from data_contracts.records import Segment, Turn
from tasks.credit.advantages import turn_advantages
from tasks.credit.assign import assign, by_turn, credit_report
from tasks.credit.config import CreditConfig


def turns(*progress: float | None, bad: tuple[int, ...] = ()) -> tuple[Turn, ...]:
    return tuple(
        Turn(
            index=i,
            completion="",
            completion_tokens=1,
            prompt_tokens=1,
            finish_reason="stop",
            policy_digest="d",
            progress=step,
            call_errors=("error",) if i in bad else (),
        )
        for i, step in enumerate(progress)
    )


def test_from_known_value_to_known_value_by_hand():
    assert turn_advantages([0.5, 0.7, 0.2], 1.0, 0.0) == pytest.approx([0.2, -0.5, 0.8])
    assert turn_advantages([0.5, 0.7, 0.2], 1.0, 1.0) == pytest.approx([0.5, 0.3, 0.8])
    assert turn_advantages([0.5, 0.7, 0.2], 1.0, 0.5) == pytest.approx([0.2 + 0.5 * (-0.5 + 0.5 * 0.8), -0.1, 0.8])
    unknown = turn_advantages([0.5, np.nan, 0.2, np.nan], 1.0, 0.0)
    assert unknown == pytest.approx([-0.3, -0.3, 0.8, 0.8]), "turns without a value share what they earned together"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 1))
def test_one_step_credit_adds_up_to_the_reward_less_the_first_value(values, reward):
    assert turn_advantages(values, reward, 0.0).sum() == pytest.approx(reward - values[0], abs=1e-12)
    assert turn_advantages(values, reward, 1.0)[0] == pytest.approx(reward - values[0], abs=1e-12)


@pytest.mark.parametrize(
    ("values", "reward"), [([np.nan, 0.5], 1.0), ([np.inf], 1.0), ([0.5], np.nan), ([0.5], np.inf)]
)
def test_values_that_can_not_be_are_refused(values, reward):
    with pytest.raises(ValueError, match="give finite ones"):
        turn_advantages(values, reward, 0.5)


def test_process_credit_rewards_the_turn_that_mended_even_where_all_failed(make_trajectory):
    # the share of hidden checks: 0 -> 0 -> .5 -> .5, and 0 -> 0 -> 0; nobody solved it
    group = [
        make_trajectory(rollout=0, outcome=False, turns=turns(0.0, 0.5, 0.0)),
        make_trajectory(rollout=1, outcome=False, turns=turns(0.0, 0.0)),
    ]
    credit = by_turn(group, CreditConfig(method="process", scale="none", progress_weight=2.0))
    assert credit["p-0"] == pytest.approx([0.5, 0.5, 0.0])  # to come .5 .5 0, means .25 .25 -, twice
    assert credit["p-1"] == pytest.approx([-0.5, -0.5])
    outcome = by_turn(group, CreditConfig(method="outcome", scale="none"))
    assert [part.tolist() for part in outcome.values()] == [[0, 0, 0], [0, 0]]


def test_process_credit_adds_to_the_outcome_and_leaves_the_lost_out(make_trajectory):
    group = [
        make_trajectory(rollout=0, outcome=True, turns=turns(0.0, 1.0)),
        make_trajectory(rollout=1, outcome=False, turns=turns(-0.5, 0.5)),
        make_trajectory(rollout=2, outcome=None, status="engine_error", turns=turns(None)),
    ]
    credit = by_turn(group, CreditConfig(method="process", scale="none"))
    assert credit["p-0"] == pytest.approx([0.5 + 0.5, 0.5 + 0.25])
    assert credit["p-1"] == pytest.approx([-0.5 - 0.5, -0.5 - 0.25]), "the turn that broke it and the one that mended"
    assert credit["p-2"] == pytest.approx([0.0])


def test_process_credit_needs_measured_progress(make_trajectory):
    with pytest.raises(UserError, match=r"p-0 has turns whose progress was not measured.*process"):
        by_turn([make_trajectory(outcome=True, turns=turns(None))], CreditConfig(method="process"))


def test_td_credit_starts_from_the_group_and_is_scaled_by_the_batch(make_trajectory):
    group = [make_trajectory(rollout=i, outcome=i == 0, turns=turns(None, None)) for i in range(2)]
    hard = [make_trajectory("hard", i, outcome=False, turns=turns(None, None)) for i in range(2)]
    values = {"p-0": {1: 0.8}, "p-1": {1: 0.1}, "hard-0": {1: 0.4}}
    plain = CreditConfig(method="td", scale="none", td_lambda=0.0)
    credit = by_turn([*group, *hard], plain, values=values)
    assert credit["p-0"] == pytest.approx([0.3, 0.2])
    assert credit["p-1"] == pytest.approx([-0.4, -0.1])
    assert credit["hard-0"] == pytest.approx([0.4, -0.4]), "what it promised, and did not keep"
    assert credit["hard-1"] == pytest.approx([0.0, 0.0])
    scaled = by_turn([*group, *hard], CreditConfig(method="td", td_lambda=0.0), values=values)
    assert scaled["p-0"] == pytest.approx(credit["p-0"] / np.std([1, 0, 0, 0]))


def test_values_weigh_nothing_for_the_lost_and_the_lonely(make_trajectory):
    batch = [
        make_trajectory(rollout=0, outcome=True, turns=turns(None, None)),
        make_trajectory(rollout=1, outcome=None, status="engine_error", turns=turns(None)),
    ]
    credit = by_turn(batch, CreditConfig(method="branch"), values={"p-0": {1: 0.2}})
    assert {name: part.tolist() for name, part in credit.items()} == {"p-0": [0, 0], "p-1": [0]}
    with pytest.raises(ValueError, match="needs values"):
        by_turn(batch, CreditConfig(method="td"))


def test_a_branch_gives_the_decision_what_it_was_worth(make_trajectory):
    group = [make_trajectory(rollout=i, outcome=i == 0, turns=turns(None, None, None, None)) for i in range(4)]
    config = CreditConfig(method="branch", scale="none")
    credit = by_turn(group, config, values={"p-0": {1: 0.25, 2: 0.75}})
    assert credit["p-0"] == pytest.approx([0.0, 0.5, 0.25, 0.25])
    assert credit["p-1"] == pytest.approx([-0.25] * 4), "one that was not branched has its outcome"


def test_only_the_turn_with_a_malformed_call_is_charged(make_trajectory):
    group = [make_trajectory(rollout=i, outcome=i == 0, turns=turns(None, None, bad=(1,) * i)) for i in range(2)]
    config = CreditConfig(scale="none", malformed_charge=0.25)
    segments = [
        Segment(trajectory_id=t.id, token_ids=[1] * 4, loss_mask=[0, 1, 0, 1], rollout_logprobs=[0, -1, 0, -1],
                turn_index=[0, 0, 1, 1])
        for t in group
    ]  # fmt: skip
    assert [s.advantages for s in assign(group, segments, config)] == [[0, 0.5, 0, 0.5], [0, -0.5, 0, -0.75]]
    assert credit_report(group, config).charged_turns == 1


def test_without_credit_the_bare_reward_is_all_there_is(make_trajectory):
    group = [make_trajectory(rollout=i, outcome=i == 0, turns=turns(None)) for i in range(2)]
    group.append(make_trajectory(rollout=2, outcome=None, status="tool_error"))
    credit = by_turn(group, CreditConfig(method="none"))
    assert {name: part.tolist() for name, part in credit.items()} == {"p-0": [1], "p-1": [0], "p-2": [0]}
