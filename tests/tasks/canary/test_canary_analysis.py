"""The sequential comparison: its formula, its coverage at every look, its refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from data_contracts.gates import Verdict
from tasks.canary.analysis import compare, half_width
from tasks.canary.config import Metric

SUCCESS = Metric(name="success", better="higher", criticality="promotes", margin=0.05, scale=1.0)


def test_half_width_is_the_published_formula() -> None:
    """sigma/sqrt(t) * sqrt(2 (t rho^2 + 1) / (t rho^2) * log(sqrt(t rho^2 + 1) / alpha)), rho from t* = tuned / 2."""
    alpha, t, sigma2 = 0.05, 37.0, 0.21
    found = float(half_width(sigma2 / t, t, alpha=alpha, tuned_sessions=100))
    x_best = 8.2  # solves x = log(1 + x) - 2 log(alpha), by fixed-point iteration
    for _ in range(100):
        x_best = math.log1p(x_best) - 2 * math.log(alpha)
    rho2 = x_best / 50
    expected = math.sqrt(sigma2) * math.sqrt(
        2 * (t * rho2 + 1) / (t**2 * rho2) * math.log(math.sqrt(t * rho2 + 1) / alpha)
    )
    assert found == pytest.approx(expected, rel=1e-12)


def test_half_width_is_tightest_at_the_tuned_number() -> None:
    """Relative to the fixed-sample width, no other tuning is tighter at 100 sessions an arm."""
    widths = [float(half_width(0.25 / 50, 50, alpha=0.05, tuned_sessions=tuned)) for tuned in range(20, 500, 10)]
    assert min(widths) == float(half_width(0.25 / 50, 50, alpha=0.05, tuned_sessions=100))


@pytest.mark.parametrize("kind", ["success", "counts", "latency"])
def test_no_difference_looked_at_after_every_session_raises_few_false_alarms(kind: str) -> None:
    """Interleaved at a share of 25 %, then 50 %: any exclusion of 0 at any of the looks is a false alarm."""
    rng = np.random.default_rng(7)
    runs, length, alpha, minimum = 1000, 400, 0.05, 20
    draw = {
        "success": lambda shape: (rng.random(shape) < 0.4).astype(float),
        "counts": lambda shape: rng.poisson(0.8, shape).astype(float),
        "latency": lambda shape: rng.lognormal(0.0, 0.7, shape),
    }[kind]
    values = draw((runs, length))
    share = np.where(np.arange(length) < 120, 0.25, 0.5)
    candidate = rng.random((runs, length)) < share
    alarms = _ever_excludes_zero(values, candidate, alpha, minimum, scale=0.0 if kind == "latency" else 1.0)
    assert alarms.mean() <= alpha
    assert alarms.mean() > 0.0, "a test that never alarms would say nothing"


def _ever_excludes_zero(
    values: np.ndarray, candidate: np.ndarray, alpha: float, minimum: int, *, scale: float
) -> np.ndarray:
    """[runs] whether `compare` without strata would exclude 0 at any look: its formula on running sums."""
    n, mean, variance = [], [], []
    for arm in (~candidate, candidate):
        count = arm.cumsum(axis=1)
        average = (values * arm).cumsum(axis=1) / np.maximum(count, 1)
        squares = (values**2 * arm).cumsum(axis=1) - count * average**2
        n.append(count)
        mean.append(average)
        variance.append((squares + scale**2) / np.maximum(count + 1 if scale else count - 1, 1))
    enough = np.minimum(*n) >= minimum
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = n[0] * n[1] / (n[0] + n[1])
        spread = variance[0] / n[0] + variance[1] / n[1]
        radius = half_width(spread, effective, alpha=alpha, tuned_sessions=100)
        return (enough & (np.abs(mean[1] - mean[0]) > radius)).any(axis=1)


def test_the_running_formula_is_what_compare_computes() -> None:
    rng = np.random.default_rng(3)
    values, candidate = (rng.random((1, 200)) < 0.4).astype(float), rng.random((1, 200)) < 0.5
    found = compare(values[0][~candidate[0]], values[0][candidate[0]], SUCCESS)
    assert found.estimate is not None and found.upper is not None
    a, b = values[0][~candidate[0]], values[0][candidate[0]]
    spread = [((v - v.mean()) ** 2).sum() + 1 for v in (a, b)]
    variance = spread[0] / (a.size + 1) / a.size + spread[1] / (b.size + 1) / b.size
    radius = float(half_width(variance, a.size * b.size / 200, alpha=0.05, tuned_sessions=100))
    assert found.estimate == pytest.approx(b.mean() - a.mean(), abs=1e-12)
    assert found.upper - found.estimate == pytest.approx(radius, abs=1e-12)


def test_a_real_difference_is_found_in_both_directions() -> None:
    rng = np.random.default_rng(11)
    verdicts = {"better": [], "worse": []}
    for _ in range(50):
        low, high = (rng.random(150) < 0.35).astype(float), (rng.random(150) < 0.65).astype(float)
        verdicts["better"].append(compare(low, high, SUCCESS).verdict)
        verdicts["worse"].append(compare(high, low, SUCCESS).verdict)
    assert verdicts["better"].count(Verdict.PASS) >= 45
    assert verdicts["worse"].count(Verdict.FAIL) >= 45


def test_margin_decides_between_pass_and_fail() -> None:
    champion, candidate = np.tile([0.0, 1.0], 5000), np.tile([0.0, 1.0, 0.0, 1.0, 0.0], 2000)  # .5 against .4
    assert compare(champion, candidate, SUCCESS.model_copy(update={"margin": 0.2})).verdict is Verdict.PASS
    assert compare(champion, candidate, SUCCESS.model_copy(update={"margin": 0.02})).verdict is Verdict.FAIL
    assert compare(champion, candidate, SUCCESS.model_copy(update={"margin": 0.1})).verdict is Verdict.INCONCLUSIVE


def test_lower_is_better_and_a_relative_margin_is_of_the_champions_mean() -> None:
    rng = np.random.default_rng(5)
    champion, candidate = rng.normal(100, 5, 2000), rng.normal(110, 5, 2000)
    latency = Metric(name="latency", better="lower", margin=0.2, relative=True)
    assert compare(champion, candidate, latency).verdict is Verdict.PASS
    assert compare(champion, candidate, latency.model_copy(update={"margin": 0.05})).verdict is Verdict.FAIL
    found = compare(champion, candidate, latency)
    assert found.estimate == pytest.approx(1.2 * champion.mean() - candidate.mean(), rel=1e-12)


def test_strata_undo_a_mix_that_changes_with_the_share() -> None:
    """Each stage has no difference at all; the pooled difference would be -0.3."""
    champion = np.concatenate([np.tile([1.0, 1.0, 1.0, 0.0, 1.0], 60), np.tile([0.0, 0.0, 1.0, 0.0, 0.0], 20)])
    candidate = np.concatenate([np.tile([1.0, 1.0, 1.0, 0.0, 1.0], 20), np.tile([0.0, 0.0, 1.0, 0.0, 0.0], 60)])
    stages = np.repeat([0, 1], [300, 100]), np.repeat([0, 1], [100, 300])
    pooled = compare(champion, candidate, SUCCESS)
    within = compare(champion, candidate, SUCCESS, strata=stages)
    assert pooled.estimate == pytest.approx(-0.3) and pooled.verdict is Verdict.FAIL
    assert within.estimate == pytest.approx(0.0, abs=1e-12) and within.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("champion", "candidate", "metric", "says"),
    [
        ([], [], "success", "0 sessions"),
        ([1.0] * 100, [], "success", "0 sessions"),
        ([1.0] * 100, [1.0] * 19, "success", "19 sessions"),
        ([0.0] * 100, [1.0] * 99 + [math.nan], "success", "not finite"),
        ([0.0] * 100, [math.inf] * 100, "success", "not finite"),
        ([0.0] * 100, [1.0] * 100, "sucess", "no metric"),
        ([5.0] * 100, [5.0] * 100, "latency", "no spread"),
    ],
)
def test_what_cannot_be_told_is_inconclusive(champion: list, candidate: list, metric: str, says: str) -> None:
    found = compare(champion, candidate, metric)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert says in found.reason
    assert found.lower is None


def test_nothing_but_successes_is_not_certainty() -> None:
    """20 of 20 in both arms: no worse by .05 is not shown; the interval is not a point."""
    found = compare([1.0] * 20, [1.0] * 20, SUCCESS)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.lower is not None and found.lower < -0.1
