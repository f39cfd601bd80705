"""Windows of live traffic: every ended session in one of them, judged once, whenever the checks run or are killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from data_contracts.gates import Verdict
from data_contracts.store import read_json
from tasks.canary.audit import AuditLog, AuditRow, read_audit
from tasks.drift import watch
from tasks.drift.config import DEFAULT_CHECKS, DriftConfig
from tasks.drift.episodes import read_ledger
from tasks.drift.folder import DriftFolder
from tasks.drift.tables import audit_table
from tasks.drift.watch import watch_traffic
from tasks.drift.windows import Cursor, cut_windows

START = datetime(2026, 12, 1, 12, tzinfo=UTC)
CONFIG = DriftConfig(
    checks=tuple(check for check in DEFAULT_CHECKS if check.name in ("prompt_length", "success")),
    minimum=5,
    window_sessions=10,
)


def row(session: str, kind: str = "turn", outcome: bool | None = None) -> AuditRow:
    return AuditRow.model_validate(
        {
            "kind": kind,
            "session": session,
            "release": "release-1",
            "arm": "champion",
            "digest": "d",
            "turn": 0,
            "prompt_tokens": 30,
            "completion_tokens": 5,
            "finish_reason": "stop",
            "tool_calls": ("read",),
            "outcome": outcome,
            "metadata": {"horizon": "short"} if kind == "outcome" else {},
        }
    )


def serve(folder: Path, first: int, n: int, *, outcome: bool = True) -> None:
    """Sessions first to first + n, one a minute; each is told its outcome half a minute later."""
    with AuditLog(folder) as log:
        for number in range(first, first + n):
            at = START + timedelta(minutes=number)
            log.append(row(f"s{number:03d}"), at)
            log.append(row(f"s{number:03d}", "outcome", outcome), at + timedelta(seconds=30))


def reference(outcome: float = 1.0) -> pd.DataFrame:
    return pd.DataFrame({"session": [f"r{n}" for n in range(40)], "prompt_tokens": 30, "success": outcome})


def members(
    audit: Path, cursor: Cursor | None = None, minutes: float = 600, config: DriftConfig = CONFIG
) -> list[list[str]]:
    cuts = cut_windows(audit, "release-1", config, cursor, START + timedelta(minutes=minutes))
    return [sorted(cut.table()["session"]) for cut in cuts]


def test_windows_by_count_are_the_same_in_one_go_and_one_by_one(tmp_path: Path) -> None:
    serve(tmp_path, 0, 25)
    whole = members(tmp_path)
    assert whole == [[f"s{n:03d}" for n in range(10)], [f"s{n:03d}" for n in range(10, 20)]]
    assert members(tmp_path, minutes=12) == whole[:1]
    first = next(cut_windows(tmp_path, "release-1", CONFIG, None, START + timedelta(hours=10)))
    assert members(tmp_path, Cursor(first.end, first.last)) == whole[1:]


def test_an_outcome_that_comes_too_late_moves_no_session(tmp_path: Path) -> None:
    with AuditLog(tmp_path) as log:
        for number in range(10):
            log.append(row(f"s{number:03d}"), START + timedelta(minutes=number))
    silent = members(tmp_path)
    with AuditLog(tmp_path) as log:
        log.append(row("s000", "outcome", True), START + timedelta(hours=2))
    [cut] = cut_windows(tmp_path, "release-1", CONFIG, None, START + timedelta(hours=10))
    assert [sorted(cut.table()["session"])] == silent
    assert cut.table()["success"].isna().all()
    assert members(tmp_path, Cursor(cut.end, cut.last)) == []


def test_windows_by_time_are_cut_without_traffic_too_and_say_so(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"window_hours": 1.0})
    serve(tmp_path / "audit", 0, 10)
    folder, now = DriftFolder(tmp_path / "drift"), START + timedelta(hours=3, minutes=10)
    judged = watch_traffic(tmp_path / "audit", folder, 1, reference(), config, now)
    assert [(len(j.report.rows), j.window.sessions, j.window.verdict) for j in judged] == [
        (3, 10, Verdict.PASS),
        (3, 0, Verdict.INCONCLUSIVE),
        (3, 0, Verdict.INCONCLUSIVE),
    ]


def test_each_window_is_judged_once(tmp_path: Path) -> None:
    folder, now = DriftFolder(tmp_path / "drift"), START + timedelta(hours=10)
    serve(tmp_path / "audit", 0, 15)
    assert len(watch_traffic(tmp_path / "audit", folder, 1, reference(), CONFIG, now)) == 1
    assert watch_traffic(tmp_path / "audit", folder, 1, reference(), CONFIG, now) == []
    serve(tmp_path / "audit", 15, 10)
    [second] = watch_traffic(tmp_path / "audit", folder, 1, reference(), CONFIG, now)
    assert (second.window.id, second.window.last) == ("00001", "s019")
    assert read_json(folder.report("00001"))["rows"][0]["n_window"] == 10
    assert list(pd.read_parquet(folder.table("00001"))["success"]) == [1.0] * 10


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_kill_around_the_ledger_leaves_one_window_each_and_one_episode(
    tmp_path: Path, point: str, killed: Callable[[Callable[[], None]], None]
) -> None:
    folder, now = DriftFolder(tmp_path / "drift"), START + timedelta(hours=10)
    serve(tmp_path / "audit", 0, 30, outcome=False)
    killed(lambda: _killed_at_second_entry(tmp_path / "audit", folder, point, now))
    assert len(read_ledger(folder.ledger).windows) == {"before": 1, "after": 2}[point]
    watch_traffic(tmp_path / "audit", folder, 1, reference(), CONFIG, now)
    ledger = read_ledger(folder.ledger)
    assert [window.last for window in ledger.windows] == ["s009", "s019", "s029"]
    [episode] = ledger.episodes
    assert (episode.windows, episode.checks) == (("00000", "00001"), ("success",))


def _killed_at_second_entry(audit: Path, folder: DriftFolder, point: str, now: datetime) -> None:
    appended, written = watch.append_entry, []

    def dying(path: Path, entry: object) -> None:
        if written and point == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        appended(path, entry)  # type: ignore[arg-type]
        if written:
            os.kill(os.getpid(), signal.SIGKILL)
        written.append(entry)

    watch.append_entry = dying
    watch_traffic(audit, folder, 1, reference(), CONFIG, now)


def test_the_table_of_an_audit_log_takes_what_clients_told_and_leaves_shadows_out(tmp_path: Path) -> None:
    serve(tmp_path, 0, 2)
    rows = read_audit(tmp_path)
    told = {"horizon": "long", "predicted": 0.8, "rewards": {"cost": -0.5}, "tools": ["read"], "tool_errors": 1}
    rows = rows.assign(
        shadow=rows["session"] == "s001",
        prompt=json.dumps([{"role": "system", "content": "be brief"}, {"role": "user", "content": "a b, b"}]),
        metadata=json.dumps(told),
        outcome=False,
    )
    [found] = audit_table(rows, release="release-1").to_dict("records")
    assert (found["session"], found["prompt"], found["horizon"]) == ("s000", "a b, b", "long")
    assert (found["tools"], found["tools_offered"], found["tool_error_rate"]) == (["read"], ["read"], 1.0)
    assert (found["predicted"], found["residual"], found["disagreement"]) == (0.8, -0.8, 1.0)
    assert (found["reward_cost"], found["prompt_symbols"], found["unserved"]) == (-0.5, pytest.approx(1 / 6), 0.0)
    assert audit_table(rows, release="release-2").empty
