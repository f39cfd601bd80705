from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, roc_auc_score

from data_contracts.gates import Verdict
from models.reward_model import Prefixes
from tasks.reward.calibration import (
    auroc,
    brier,
    calibration_gate,
    calibration_report,
    ece,
    ece_interval,
    reliability,
)
from tasks.reward.config import ProbeConfig

CONFIG = ProbeConfig(bootstraps=50, bins=5, minimum_rollouts=100)
PAIRS = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


def draw(n: int, *, honest: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.05, 0.95, n)
    return p, rng.uniform(size=n) < (p if honest else 1 - p)


def test_ece_of_two_bins_by_hand():
    # Bins (.1 .3 | .6 .8): |.2 - .5| and |.7 - 1|, half the weight each.
    assert ece([0.8, 0.1, 0.6, 0.3], [1, 0, 1, 1], bins=2) == pytest.approx((0.3 + 0.3) / 2)
    table = reliability([0.8, 0.1, 0.6, 0.3], [1, 0, 1, 1], bins=2)
    assert [(row.n, row.predicted, row.observed) for row in table] == [
        (2, pytest.approx(0.2), 0.5),
        (2, pytest.approx(0.7), 1.0),
    ]


def test_equal_predictions_stay_in_one_bin():
    assert ece([0.5] * 100, [0] * 50 + [1] * 50, bins=10) == 0
    assert [row.n for row in reliability([0.1] * 7 + [0.9] * 3, [0] * 7 + [1] * 3, bins=2)] == [10]
    assert [row.n for row in reliability([0.1] * 4 + [0.9] * 6, [0] * 4 + [1] * 6, bins=2)] == [4, 6]


@settings(deadline=None)
@given(PAIRS, st.integers(2, 12))
def test_bins_hold_everything_and_ece_is_bounded(pairs, bins):
    predicted, outcomes = zip(*pairs, strict=True)
    table = reliability(predicted, outcomes, bins)
    assert sum(row.n for row in table) == len(pairs)
    assert sum(row.n * row.observed for row in table) == pytest.approx(sum(outcomes))
    assert len(table) <= bins
    assert [row.predicted for row in table] == sorted(row.predicted for row in table)
    assert 0 <= ece(predicted, outcomes, bins) <= 1


@settings(deadline=None)
@given(PAIRS)
def test_auroc_and_brier_agree_with_sklearn(pairs):
    predicted, outcomes = zip(*pairs, strict=True)
    assert brier(predicted, outcomes) == pytest.approx(brier_score_loss(outcomes, predicted, pos_label=True), abs=1e-12)
    if len(set(outcomes)) == 2:
        assert auroc(predicted, outcomes) == pytest.approx(roc_auc_score(outcomes, predicted), abs=1e-12)
    else:
        assert math.isnan(auroc(predicted, outcomes))


def test_an_honest_forecaster_is_calibrated_and_a_liar_is_not():
    honest, liar = draw(4000, honest=True), draw(4000, honest=False)
    assert ece(*honest) < 0.03
    assert ece(*liar) > 0.4
    assert auroc(*honest) == pytest.approx(1 - auroc(*liar), abs=0.03)


def test_the_interval_resamples_problems_not_rows():
    p, y = draw(600, honest=True)
    each = ece_interval(p, y, [str(i) for i in range(600)], bins=5, bootstraps=200, seed=0)
    # Thirty rows that are copies of one another tell no more than one.
    copies = ece_interval(
        np.repeat(p[:20], 30), np.repeat(y[:20], 30), [str(i // 30) for i in range(600)], bins=5, bootstraps=200, seed=0
    )
    assert copies[1] - copies[0] > 2 * (each[1] - each[0])
    assert each == ece_interval(p, y, [str(i) for i in range(600)], bins=5, bootstraps=200, seed=0)


def rows(outcomes, horizons=("short",), versions=("policy-00000",), problems=40, turns=1) -> Prefixes:
    """Rollouts of `turns` boundaries each, horizons and versions in rotation."""
    n = len(outcomes)
    return Prefixes(
        features=np.zeros((n, 1)),
        trajectory_ids=tuple(str(i // turns) for i in range(n)),
        problem_ids=tuple(f"p{i % problems}" for i in range(n)),
        horizons=tuple(horizons[i % len(horizons)] for i in range(n)),
        versions=tuple(versions[i % len(versions)] for i in range(n)),
        turns=tuple(i % turns for i in range(n)),
        outcomes=tuple(bool(outcome) for outcome in outcomes),
    )


def report_of(n: int, *, honest: bool):
    p, y = draw(n, honest=honest)
    return calibration_report(p, [True] * n, rows(y, ("short", "medium")), CONFIG)


def test_the_report_has_a_part_per_horizon():
    report = report_of(400, honest=True)
    assert (report.all.rollouts, report.horizons["short"].rollouts, report.horizons["long"].rollouts) == (400, 200, 0)
    assert report.horizons["long"].ece is None
    assert report.all.ece_low <= report.all.ece <= report.all.ece_high
    assert report.all.base_rate == pytest.approx(draw(400, honest=True)[1].mean())


def test_the_gates_pass_hold_and_fail():
    assert [gate.verdict for gate in calibration_gate(report_of(400, honest=True), CONFIG)] == [Verdict.PASS] * 2
    assert [gate.verdict for gate in calibration_gate(report_of(400, honest=False), CONFIG)] == [Verdict.FAIL] * 2
    few = calibration_gate(report_of(60, honest=True), CONFIG)
    assert [gate.verdict for gate in few] == [Verdict.INCONCLUSIVE] * 2
    none = calibration_gate(calibration_report([], [], rows([]), CONFIG), CONFIG)
    assert [gate.verdict for gate in none] == [Verdict.INCONCLUSIVE] * 2


def test_one_kind_of_outcome_leaves_the_auroc_open():
    n = 200
    report = calibration_report([0.9] * n, [True] * n, rows([True] * n, problems=1), CONFIG)
    assert report.all.auroc is None
    assert [gate.verdict for gate in calibration_gate(report, CONFIG)] == [Verdict.PASS, Verdict.INCONCLUSIVE]


def test_each_policy_version_and_the_rollouts_ends_are_measured_alone():
    p, y = draw(400, honest=True)
    versions = ("policy-00000", "policy-00007")
    report = calibration_report(p, [True] * 400, rows(y, versions=versions, turns=2), CONFIG)
    assert {name: part.predictions for name, part in report.versions.items()} == dict.fromkeys(versions, 200)
    assert (report.ends.predictions, report.ends.rollouts, report.all.predictions) == (200, 200, 400)
    assert report.ends.brier == pytest.approx(brier(p[1::2], y[1::2]))


def test_what_is_abstained_on_is_counted_and_is_in_no_figure():
    p, y = draw(400, honest=True)
    wrong = np.concatenate([p, np.full(100, 0.99)])
    known = [True] * 400 + [False] * 100
    report = calibration_report(wrong, known, rows([*y, *[False] * 100]), CONFIG)
    assert (report.abstained, report.all.predictions) == (100, 400)
    assert report.all.ece == pytest.approx(ece(p, y, CONFIG.bins))
    assert calibration_report(wrong, [True] * 500, rows([*y, *[False] * 100]), CONFIG).all.ece > report.all.ece + 0.1


@pytest.mark.parametrize("planted", ["overconfident", "shifted", "inverted"])
def test_a_planted_miscalibration_is_caught_by_the_gate_of_values(planted):
    p, y = draw(4000, honest=True)
    bad = {"overconfident": np.where(p > 0.5, 0.98, 0.02), "shifted": np.clip(p + 0.15, 0, 1), "inverted": 1 - p}
    strict = CONFIG.model_copy(update={"value_auroc_limit": 0.7}).for_values()
    honest = calibration_gate(calibration_report(p, [True] * 4000, rows(y), strict), strict)
    assert [gate.verdict for gate in honest] == [Verdict.PASS, Verdict.PASS]
    caught, _ = calibration_gate(calibration_report(bad[planted], [True] * 4000, rows(y), strict), strict)
    assert (caught.name, caught.verdict) == ("reward.ece", Verdict.FAIL)


@pytest.mark.parametrize(
    ("predicted", "outcomes", "words"),
    [([float("nan")], [1], "no probability"), ([1.2], [1], "no probability"), ([0.5], [0.5], "neither")],
)
def test_what_is_no_forecast_is_refused(predicted, outcomes, words):
    with pytest.raises(ValueError, match=words):
        ece(predicted, outcomes)
