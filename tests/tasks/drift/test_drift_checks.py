"""Drift: found when it is there, not found when it is not, and never a pass on nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from data_contracts.gates import Verdict
from tasks.drift.checks import drift_checks, holm
from tasks.drift.config import DEFAULT_CHECKS, Check, DriftConfig

FIGURES = ("horizon_mix", "prompt_length", "turns", "tokens", "tool_errors", "success")
CONFIG = DriftConfig(checks=tuple(check for check in DEFAULT_CHECKS if check.name in FIGURES))


def table(n: int, seed: int, **changes: object) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "horizon": rng.choice(["short", "medium", "long"], n, p=[0.6, 0.3, 0.1]),
            "prompt_tokens": rng.integers(80, 200, n),
            "turns": rng.integers(2, 7, n),
            "tokens": rng.poisson(60, n),
            "tool_error_rate": rng.choice([0.0, 0.25, 0.5], n, p=[0.7, 0.2, 0.1]),
            "success": (rng.random(n) < 0.6).astype(float),
        }
    )
    return frame.assign(**changes)


def verdicts(reference: pd.DataFrame, window: pd.DataFrame, config: DriftConfig = CONFIG) -> dict[str, Verdict]:
    return {row.check: row.verdict for row in drift_checks(reference, window, config).rows}


def test_no_drift_seldom_alarms() -> None:
    reference = table(400, 1000)
    alarms = [drift_checks(reference, table(200, seed), CONFIG).verdict is Verdict.FAIL for seed in range(30)]
    assert sum(alarms) <= 1
    assert drift_checks(reference, table(200, 1), CONFIG).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("check", "changes"),
    [
        ("horizon_mix", {"horizon": ["long"] * 150 + ["short"] * 50}),
        ("prompt_length", {"prompt_tokens": np.arange(200) + 150}),
        ("turns", {"turns": [6] * 200}),
        ("tokens", {"tokens": np.arange(200)}),
        ("tool_errors", {"tool_error_rate": [0.5] * 200}),
        ("success", {"success": [0.0] * 120 + [1.0] * 80}),
        ("missing", {"turns": [np.nan] * 40 + [2, 3, 4, 5, 6] * 32}),
    ],
)
def test_each_drift_is_found_and_alone(check: str, changes: dict[str, object]) -> None:
    found = verdicts(table(400, 1), table(200, 2, **changes))
    assert [name for name, verdict in found.items() if verdict is Verdict.FAIL] == [check]


def test_a_change_for_the_better_is_no_drift_of_success_or_tool_errors() -> None:
    found = verdicts(table(400, 1), table(200, 2, success=[1.0] * 200, tool_error_rate=[0.0] * 200))
    assert found["success"] is Verdict.PASS and found["tool_errors"] is Verdict.PASS


def test_a_small_effect_is_no_drift_however_significant() -> None:
    reference, window = table(10_000, 1), table(10_000, 2)
    window["tokens"] = window["tokens"] + 2
    row = next(row for row in drift_checks(reference, window, CONFIG).rows if row.check == "tokens")
    assert row.corrected_p is not None and row.corrected_p < 1e-6
    assert row.verdict is Verdict.PASS


@pytest.mark.parametrize("side", ["reference", "window", "both"])
def test_an_empty_table_is_inconclusive(side: str) -> None:
    full, empty = table(400, 1), table(400, 1).iloc[:0]
    report = drift_checks(full if side == "window" else empty, full if side == "reference" else empty, CONFIG)
    assert {row.verdict for row in report.rows} == {Verdict.INCONCLUSIVE}
    assert report.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("value", [np.nan, None])
def test_an_all_missing_window_is_inconclusive(value: object) -> None:
    nothing = pd.DataFrame({column: [value] * 200 for column in table(1, 0).columns})
    report = drift_checks(table(400, 1), nothing, CONFIG)
    assert {row.verdict for row in report.rows} == {Verdict.INCONCLUSIVE}
    assert drift_checks(table(400, 1), pd.DataFrame(), CONFIG).verdict is Verdict.INCONCLUSIVE


def test_one_missing_column_is_inconclusive_itself_and_a_drift_of_the_missing_share() -> None:
    found = verdicts(table(400, 1), table(200, 2, success=[np.nan] * 200))
    assert found["success"] is Verdict.INCONCLUSIVE
    assert found["missing"] is Verdict.FAIL


def test_infinite_values_are_missing_ones() -> None:
    found = verdicts(table(400, 1), table(200, 2, tokens=[np.inf] * 200))
    assert found["tokens"] is Verdict.INCONCLUSIVE and found["missing"] is Verdict.FAIL


def test_a_column_only_one_side_has_is_inconclusive_and_named() -> None:
    config = DriftConfig(checks=(Check(name="calibration", column="calibration_error", kind="shape", effect=0.2),))
    report = drift_checks(table(400, 1), table(200, 2, calibration_error=[0.1] * 200), config)
    assert report.rows[0].verdict is Verdict.INCONCLUSIVE
    assert "reference has no column calibration_error" in report.rows[0].reason


def test_effects_by_hand() -> None:
    checks = (
        Check(name="mix", column="m", kind="mix", effect=0.1),
        Check(name="rate", column="r", kind="rate", effect=0.1),
        Check(name="shape", column="s", kind="shape", effect=0.1),
    )
    reference = pd.DataFrame({"m": ["a", "b"] * 50, "r": [1.0, 0.0] * 50, "s": np.arange(100.0)})
    window = pd.DataFrame({"m": ["a"] * 100, "r": [1.0, 1.0, 1.0, 0.0] * 25, "s": np.arange(100.0) + 30})
    rows = {row.check: row for row in drift_checks(reference, window, DriftConfig(checks=checks)).rows}
    assert rows["mix"].effect == pytest.approx((1 / 3) ** 0.5)  # chi2 = 200 * (50*100)^2 / (100*100*150*50)
    assert rows["rate"].effect == pytest.approx(0.25)
    assert rows["shape"].effect == pytest.approx(0.30)
    assert rows["mix"].gate().name == "drift_mix" and rows["mix"].gate().verdict is Verdict.FAIL


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_config_that_can_never_fire_is_refused() -> None:
    with pytest.raises(ValidationError, match="can never be"):
        DriftConfig(windows=2, drifted=3)
    with pytest.raises(ValidationError, match="direction = 'any'"):
        Check(name="m", column="m", kind="mix", effect=0.1, direction="rise")
