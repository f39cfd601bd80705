from __future__ import annotations

import pytest

from data_contracts.records import Sampling
from tasks.evaluation.config import EvaluationConfig
from tasks.evaluation.intervals import wilson
from tasks.evaluation.paired import paired
from tasks.evaluation.report import by_mode, report

GREEDY = Sampling(temperature=0.0)


def policy(make, passed: int, n: int, **changes):
    return [make(f"p{i:03}", 0, outcome=i < passed, sampling=GREEDY, **changes) for i in range(n)]


def test_the_report_has_both_tracks_and_counts_exclusions(make_trajectory):
    rollouts = policy(make_trajectory, 6, 8)
    rollouts += [
        make_trajectory(f"m{i}", horizon="medium", outcome=False, sampling=GREEDY, rewards={"outcome": 0.0, "cost": -1})
        for i in range(2)
    ]
    rollouts += [make_trajectory("x", outcome=None, status="sandbox_error", sampling=GREEDY)]
    rollouts += [make_trajectory("y", outcome=None, sampling=GREEDY)]
    found = report(rollouts)
    short, everything = found.horizons["short"], found.horizons["all"]
    assert (short.n, short.problems, short.successes, short.rate) == (8, 8, 6, 0.75)
    assert (short.low, short.high) == wilson(6, 8)
    assert short.excluded == {"not_verified": 1, "sandbox_error": 1}
    assert (everything.n, everything.rate, everything.training_reward) == (10, 0.6, 0.6)
    assert (found.horizons["long"].n, found.horizons["long"].rate) == (0, None)
    assert (found.horizons["long"].low, found.horizons["long"].high) == (0, 1)
    assert (found.mode, found.policy_versions) == ("greedy", ("policy-00000",))


def test_the_training_reward_is_its_own_track(make_trajectory):
    rollouts = [make_trajectory(f"p{i}", outcome=True, rewards={"outcome": 0.8}) for i in range(4)]
    found = report(rollouts, weights={"outcome": 0.5}).horizons["all"]
    assert found.rate == 1
    assert found.training_reward == pytest.approx(0.4)


def test_modes_are_not_mixed(make_trajectory):
    rollouts = [make_trajectory("a", 0, sampling=GREEDY), make_trajectory("a", 1)]
    with pytest.raises(ValueError, match="mixed"):
        report(rollouts)
    assert {mode: len(part) for mode, part in by_mode(rollouts).items()} == {"greedy": 1, "sampled": 1}
    with pytest.raises(ValueError, match="twice"):
        report([rollouts[1], rollouts[1]])


def test_pairs_by_problem_and_index(make_trajectory):
    before = [make_trajectory("a", i, outcome=i == 0) for i in range(2)] + [make_trajectory("b", 0, outcome=True)]
    after = [make_trajectory("a", i, outcome=True) for i in range(2)] + [make_trajectory("b", 0, outcome=False)]
    before += [make_trajectory("c", 0, outcome=True), make_trajectory("d", 0, outcome=True)]
    after += [make_trajectory("c", 0, outcome=None, status="engine_error"), make_trajectory("e", 0, outcome=True)]
    found = paired(before, after[::-1])
    everything = found.horizons["all"]
    assert (everything.pairs, everything.problems, everything.gained, everything.lost) == (3, 2, 1, 1)
    # Problem a gains half a rollout on the mean, problem b loses one: each has one vote.
    assert everything.difference == pytest.approx((0.5 - 1) / 2)
    assert (everything.before, everything.after, everything.p_value) == (pytest.approx(2 / 3), pytest.approx(2 / 3), 1)
    assert (found.excluded, found.unmatched) == (1, 2)
    assert found.horizons["long"].difference is None


def test_one_side_holding_a_rollout_twice_is_refused(make_trajectory):
    twice = [make_trajectory("a", 0), make_trajectory("a", 0, id="other")]
    with pytest.raises(ValueError, match="twice"):
        paired(twice, [])


def test_a_config_that_measures_nothing_is_refused():
    with pytest.raises(ValueError, match="nothing is measured"):
        EvaluationConfig(greedy=False, rollouts=0)
