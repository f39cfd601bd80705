from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from tasks.evaluation.intervals import clustered_wilson, mcnemar_exact, paired_interval, wilson


@settings(deadline=None)
@given(st.integers(1, 500), st.data(), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_agrees_with_scipy(n, data, level):
    successes = data.draw(st.integers(0, n))
    expected = binomtest(successes, n).proportion_ci(level, method="wilson")
    assert wilson(successes, n, level) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_at_the_edges():
    assert wilson(0, 0) == (0, 1)
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == 1
    # By hand: z^2 = 3.8415, centre (5 + 1.9207) / 13.8415, half sqrt(3.8415) / 13.8415 * sqrt(2.5 + .96036).
    assert wilson(5, 10) == pytest.approx((0.5 - 0.2634, 0.5 + 0.2634), abs=1e-4)
    with pytest.raises(ValueError, match="11 successes of 10"):
        wilson(11, 10)


def test_one_rollout_a_problem_is_plain_wilson():
    outcomes = [1, 0, 1, 1, 0, 0, 0, 1]
    assert clustered_wilson(outcomes, list("abcdefgh")) == wilson(4, 8)


def test_copies_of_a_rollout_tell_nothing_new():
    single = [1, 0, 1, 1, 0, 0, 0, 1, 1, 1] * 4
    names = [str(i) for i in range(40)]
    low, high = clustered_wilson(np.repeat(single, 8), np.repeat(names, 8).tolist())
    # The cluster estimate divides by 39, the plain one by 40.
    assert (low, high) == pytest.approx(wilson(24 * 39 / 40, 39), abs=1e-9)
    assert clustered_wilson([1] * 80, [str(i // 8) for i in range(80)]) == wilson(10, 10)
    assert clustered_wilson([1, 0, 1], ["a"] * 3) == pytest.approx(wilson(2 / 3, 1))
    assert clustered_wilson([], []) == (0, 1)


def test_clustered_wilson_covers_where_the_plain_one_does_not():
    rng = np.random.default_rng(0)
    covered = {"clustered": 0, "plain": 0}
    names = [str(i // 8) for i in range(320)]
    for _ in range(300):
        y = rng.uniform(size=320) < np.repeat(rng.beta(0.5, 0.5, 40), 8)
        for kind, (low, high) in (("clustered", clustered_wilson(y, names)), ("plain", wilson(int(y.sum()), 320))):
            covered[kind] += low <= 0.5 <= high
    assert covered["clustered"] / 300 > 0.9
    assert covered["plain"] / 300 < 0.75


def test_paired_interval_by_hand():
    # 12 gained, 3 lost, 85 equal; with the added two n = 102, mean 9/102, mean square 16/102
    centre = 9 / 102
    half = 1.98373 * ((16 / 102 - centre**2) / 101) ** 0.5  # Student's t, 101 degrees of freedom
    assert paired_interval([1] * 12 + [-1] * 3 + [0] * 85) == pytest.approx((centre - half, centre + half), abs=1e-5)


def test_paired_interval_never_shrinks_to_a_point():
    low, high = paired_interval([0.0] * 100)
    assert (low, high) == pytest.approx((-high, 1.98373 * (1 / 102 / 101) ** 0.5), abs=1e-5)
    assert paired_interval([]) == (-1, 1)
    assert paired_interval([1.0, 1.0])[1] == 1


def test_paired_interval_covers():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        before, after = rng.uniform(size=(2, 150)) < np.array([[0.4], [0.6]])
        low, high = paired_interval(after.astype(float) - before)
        covered += low <= 0.2 <= high
    assert 0.92 < covered / 400 < 0.98


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_agrees_with_scipy(gained, lost):
    expected = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert mcnemar_exact(gained, lost) == pytest.approx(expected, rel=1e-9)
