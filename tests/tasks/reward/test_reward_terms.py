"""Verified terms, shaping by potentials, and proxies: each in its own place."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_contracts.records import Check, Limits, Problem, ToolCall, Turn
from tasks.credit.assign import by_turn
from tasks.credit.config import CreditConfig
from tasks.credit.shaping import shaping_credit
from tasks.reward.config import ProxyConfig, RewardConfig, TermConfig, TermsConfig
from tasks.reward.signals import NO_SIGNALS, Proxies, Signals, potential, shaping_signals, with_model
from tasks.reward.terms import SHAPING, reward_terms, scalar_reward

LIMITS = Limits(turns=4, tokens=100)
PROBLEM = Problem(
    id="p", prompt="x", files={"a.py": "x"}, solution={"a.py": "y"}, hidden=(Check(name="h", code="pass"),),
    limits=LIMITS,
)  # fmt: skip
ALL = TermsConfig(**{name: {"enabled": True} for name in SHAPING})


def turn(index: int, *, calls: int = 1, errors: int = 0, tokens: int = 10, progress: float | None = None) -> Turn:
    return Turn(
        index=index,
        completion="",
        completion_tokens=tokens,
        prompt_tokens=1,
        finish_reason="stop",
        calls=tuple(ToolCall(name="test") for _ in range(calls)),
        call_errors=("broken",) * errors,
        policy_digest="d",
        progress=progress,
    )


TURNS = st.lists(
    st.builds(
        lambda calls, errors, tokens, progress: dict(calls=calls, errors=errors, tokens=tokens, progress=progress),
        st.integers(0, 3), st.integers(0, 2), st.integers(1, 40), st.floats(-0.3, 0.3),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


def test_verified_terms_are_all_that_a_trajectory_holds(make_trajectory):
    rollout = make_trajectory(outcome=False, hidden_passed=2, hidden_total=3, visible_passed=3, visible_total=3)
    assert reward_terms(rollout, ALL) == pytest.approx({"outcome": 0.0, "process": 2 / 3})
    bounded = TermsConfig(outcome=TermConfig(low=0.0, high=0.5, enabled=True))
    assert reward_terms(make_trajectory(outcome=True), bounded)["outcome"] == 0.5


def test_potentials_by_hand(make_trajectory):
    turns = (turn(0, progress=0.5), turn(1, calls=1, errors=1, tokens=30, progress=-0.25))
    rollout = make_trajectory(outcome=False, turns=turns)
    found = {name: potential(name, rollout, LIMITS, term) for name, term in ALL.items().items() if name in SHAPING}
    assert found["process"] == pytest.approx((0, 0.5, 0.25))
    assert found["format"] == pytest.approx((0, 0, -1 / 3))
    assert found["cost"] == pytest.approx((0, -(0.1 + 0.25) / 2, -(0.4 + 0.5) / 2))
    cheap = TermConfig(low=-0.2, high=0.0)
    assert potential("cost", rollout, LIMITS, cheap)[-1] == -0.2


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TURNS, TURNS)
def test_shaping_adds_up_to_the_same_whatever_the_path(make_trajectory, one, other):
    """Ng, Harada and Russell 1999: differences of a potential that is 0 at the end sum to minus that of the start."""
    for name in SHAPING:
        totals = []
        for path in (one, other):
            rollout = make_trajectory(turns=tuple(turn(i, **step) for i, step in enumerate(path)))
            values = [*potential(name, rollout, LIMITS, getattr(ALL, name))[:-1], 0.0]
            totals.append(sum(after - before for before, after in pairwise(values)))
        assert totals[0] == pytest.approx(totals[1], abs=1e-9)
        assert totals[0] == pytest.approx(0.0, abs=1e-9)


def test_shaping_gives_a_turn_less_where_more_was_reached_before_it(make_trajectory):
    group = [
        make_trajectory(rollout=0, outcome=True, turns=(turn(0, progress=0.6), turn(1, progress=0.4))),
        make_trajectory(rollout=1, outcome=False, turns=(turn(0, progress=0.2), turn(1, progress=0.0))),
    ]
    signals = shaping_signals(group, {"p": PROBLEM}, ALL)
    found = shaping_credit(group, {"outcome": 1.0, "process": 0.5}, signals)
    assert found["p-0"] == pytest.approx([0, -0.5 * (0.6 - 0.4)])
    assert found["p-1"] == pytest.approx([0, +0.5 * (0.4 - 0.2)])


def test_a_term_is_switched_off_without_touching_the_others(make_trajectory):
    paths = [(turn(0, errors=i, progress=0.0), turn(1, tokens=5 + 9 * i, progress=i / 4)) for i in range(3)]
    group = [make_trajectory(rollout=i, outcome=i == 0, turns=path) for i, path in enumerate(paths)]
    config = ALL.model_copy(update={"proxy": ProxyConfig(enabled=True, source="brevity")})
    signals = shaping_signals(group, {"p": PROBLEM}, config)
    weights = RewardConfig(terms=config).weights
    assert set(weights) == {"outcome", "process", "format", "cost", "proxy"}
    without = {name: weight for name, weight in weights.items() if name != "proxy"}
    never = shaping_signals(group, {"p": PROBLEM}, ALL)
    for credit in (CreditConfig(), CreditConfig(method="process")):
        off, on, never_declared = (
            {n: part.tolist() for n, part in by_turn(group, credit, weights=told, signals=said).items()}
            for told, said in ((without, signals), (weights, signals), (without, never))
        )
        assert off == never_declared
        assert on != off


def test_only_the_outcome_counts_by_default(make_trajectory):
    assert RewardConfig().weights == {"outcome": 1.0}
    assert scalar_reward(make_trajectory(outcome=True, rewards={"outcome": 1.0, "process": 0.5})) == 1.0
    assert shaping_signals([make_trajectory()], {"p": PROBLEM}, TermsConfig()) == NO_SIGNALS


def test_proxies_are_told_from_the_rollout(make_trajectory):
    rollout = make_trajectory(outcome=False, visible_passed=1, visible_total=4, turns=(turn(0), turn(1, tokens=30)))
    lost = make_trajectory(rollout=1, outcome=None, status="engine_error")

    def said(source):
        config = TermsConfig(proxy=ProxyConfig(enabled=True, source=source))
        return shaping_signals([rollout, lost], {"p": PROBLEM}, config).proxies

    assert said("visible") == {"p-0": 0.25}
    assert said("brevity") == pytest.approx({"p-0": 1 - (0.4 + 0.5) / 2})
    assert said("model") == {}


def test_the_reward_models_word_is_a_proxy_where_it_did_not_abstain(make_trajectory):
    rollouts = [make_trajectory(rollout=i) for i in range(3)]
    config = TermsConfig(proxy=ProxyConfig(enabled=True, high=0.8, low=0.0))
    found = with_model(Signals(), rollouts, Proxies({"p-0": 0.9, "p-1": None, "p-2": 0.3}), config)
    assert (found.proxies, found.abstained) == ({"p-0": 0.8, "p-2": 0.3}, 1)
    held = with_model(Signals(), rollouts, Proxies({}, "reward.ece FAIL"), config)
    assert (held.proxies, held.abstained, held.note) == ({}, 3, "reward.ece FAIL")


def test_the_unscorable_have_no_terms_and_no_reward(make_trajectory):
    lost = make_trajectory(outcome=None, status="sandbox_error")
    assert reward_terms(lost, TermsConfig()) == {}
    assert math.isnan(scalar_reward(lost))
    assert math.isnan(scalar_reward(make_trajectory(outcome=None)))


def test_bounds_the_wrong_way_round_are_refused():
    with pytest.raises(ValueError, match="smaller bound"):
        TermConfig(low=1.0, high=0.0)
