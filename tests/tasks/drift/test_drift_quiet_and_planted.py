"""What the checks promise: quiet traffic seldom alarms, each planted drift is found within three windows and named."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from data_contracts.gates import Verdict
from tasks.drift.checks import drift_checks
from tasks.drift.config import MISSING, DriftConfig
from tasks.drift.episodes import Entry, Ledger, Window, judge
from tasks.drift.tables import _table

CONFIG = DriftConfig()
START = datetime(2026, 12, 1, tzinfo=UTC)
WORDS = np.array([f"name{i}" for i in range(60)])
TOOLS = np.array(["read", "edit", "test"])
Change = Callable[[np.random.Generator, pd.DataFrame], dict[str, Any]]


def names(rng: np.random.Generator, n: int, shares: list[float]) -> list[list[str]]:
    """Calls of n sessions: one to six tools by their shares, then submit."""
    calls = TOOLS[rng.choice(3, (n, 6), p=shares)]
    return [[*row[:count], "submit"] for row, count in zip(calls, rng.integers(1, 7, n), strict=True)]


def prompts(rng: np.random.Generator, n: int, start: str) -> list[str]:
    return [f"{start} {' '.join(words)}: it returns {words[0]}" for words in WORDS[rng.integers(0, 60, (n, 12))]]


def sessions(n: int, seed: int, change: Change = lambda rng, frame: {}) -> pd.DataFrame:
    """Sessions of an agent that solves what it says it will; `change` is the drift."""
    rng = np.random.default_rng(seed)
    predicted = rng.beta(3, 2, n)
    frame = pd.DataFrame(
        {
            "horizon": rng.choice(["short", "medium", "long"], n, p=[0.6, 0.3, 0.1]),
            "prompt": prompts(rng, n, "fix the function"),
            "prompt_tokens": rng.integers(80, 200, n),
            "tools": names(rng, n, [0.4, 0.3, 0.3]),
            "turns": rng.integers(2, 7, n),
            "tokens": rng.poisson(60, n),
            "tool_error_rate": rng.choice([0.0, 0.25, 0.5], n, p=[0.7, 0.2, 0.1]),
            "truncated": (rng.random(n) < 0.05).astype(float),
            "unserved": (rng.random(n) < 0.01).astype(float),
            "success": (rng.random(n) < predicted).astype(float),
            "predicted": predicted,
            "reward_process": rng.random(n),
            "reward_format": -(rng.random(n) < 0.1).astype(float),
            "reward_cost": -rng.random(n),
        }
    )
    return _table(frame.assign(**change(rng, frame)).to_dict("records"))


def window_of(number: int, table: pd.DataFrame, reference: pd.DataFrame) -> Window:
    report = drift_checks(reference, table, CONFIG)
    end = START + timedelta(hours=number)
    return Window(
        id=f"{number:05d}",
        source="gateway",
        release=1,
        start=end,
        end=end,
        sessions=len(table),
        verdict=report.verdict,
        drifted=report.drifted,
    )


def watched(windows: list[Window]) -> Ledger:
    entries: tuple[Entry, ...] = ()
    for window in windows:
        entries = (*entries, judge(Ledger(entries), window, CONFIG))
    return Ledger(entries)


def test_of_200_quiet_windows_no_more_alarm_than_stated_and_none_opens_an_episode() -> None:
    windows = []
    for block in range(8):  # several references: with one, all windows would share its luck
        reference = sessions(300, 10_000 + block)
        windows += [
            window_of(number, sessions(100, number), reference) for number in range(25 * block, 25 * block + 25)
        ]
    alarms = [window for window in windows if window.verdict is Verdict.FAIL]
    assert len(alarms) <= CONFIG.alpha * 200
    assert not watched(windows).episodes
    assert sum(window.verdict is Verdict.PASS for window in windows) >= 198


def ones(rng: np.random.Generator, share: float) -> pd.Series:
    return pd.Series((rng.random(200) < share).astype(float))


@pytest.mark.parametrize(
    ("named", "change"),
    [
        (["prompt_length"], lambda rng, frame: {"prompt_tokens": frame["prompt_tokens"] + 60}),
        (["tool_mix"], lambda rng, frame: {"tools": names(rng, len(frame), [0.1, 0.8, 0.1])}),
        (["success"], lambda rng, frame: {"success": frame["success"] * ones(rng, 0.6)}),
        (
            ["calibration", "calibration_shift"],
            lambda rng, frame: {"predicted": np.minimum(frame["predicted"] + 0.25, 1.0)},
        ),
        (["disagreement"], lambda rng, frame: {"success": (frame["predicted"] < 0.5).astype(float)}),
        (["prompt_meaning"], lambda rng, frame: {"prompt": prompts(rng, len(frame), "translate this page for me")}),
        (["truncation"], lambda rng, frame: {"truncated": ones(rng, 0.3)}),
        (["unserved"], lambda rng, frame: {"unserved": ones(rng, 0.2)}),
        (["reward_format"], lambda rng, frame: {"reward_format": -ones(rng, 0.6)}),
    ],
)
def test_planted_drift_is_found_within_three_windows_named_and_opens_one_episode(
    named: list[str], change: Change
) -> None:
    reference = sessions(400, 10_000)
    windows = [window_of(n, sessions(200, n, change), reference) for n in range(3)]
    [episode] = watched(windows).episodes
    assert set(named) <= set(episode.checks)
    again = [window.model_copy(update={"id": f"later-{window.id}"}) for window in windows]
    assert watched([*windows, *again]).episodes == [episode]


def test_an_optional_column_that_nobody_fills_is_named_and_does_not_hold_the_verdict() -> None:
    window = sessions(200, 2, lambda rng, frame: {"predicted": None, "reward_cost": None, "horizon": None})
    report = drift_checks(sessions(400, 1), window, CONFIG)
    rows = {row.check: row.verdict for row in report.rows}
    for check in ("calibration", "disagreement", "reward_cost", "horizon_mix", "mismatch", "tools_offered"):
        assert rows[check] is Verdict.INCONCLUSIVE
    assert report.verdict is Verdict.PASS


def test_a_column_that_stops_coming_is_missing_and_starts_no_run() -> None:
    reference = sessions(400, 1)
    windows = [window_of(n, sessions(200, n, lambda rng, frame: {"success": None}), reference) for n in range(3)]
    assert {window.drifted for window in windows} == {(MISSING,)}
    assert not watched(windows).episodes


@pytest.mark.parametrize("table", [sessions(0, 1), sessions(200, 1).map(lambda _: None), pd.DataFrame()])
def test_empty_and_all_missing_windows_are_inconclusive(table: pd.DataFrame) -> None:
    report = drift_checks(sessions(400, 1), table, CONFIG)
    assert {row.verdict for row in report.rows} == {Verdict.INCONCLUSIVE}
    assert report.verdict is Verdict.INCONCLUSIVE
