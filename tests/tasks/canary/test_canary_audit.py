"""The audit log: nothing lost by a kill, nothing twice, one Parquet file a day, and every change found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from data_contracts.errors import UserError
from flows.commands.audit import app
from tasks.canary.audit import SCHEMA, AuditLog, AuditRow, read_audit, training_sessions, verify
from tasks.canary.audit.days import expire
from tasks.paths import ServiceFolder

MONDAY, TUESDAY = datetime(2026, 11, 30, 23, 59, tzinfo=UTC), datetime(2026, 12, 1, 0, 1, tzinfo=UTC)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def row(session: str, turn: int = 0) -> AuditRow:
    return AuditRow(
        kind="turn",
        session=session,
        release="release-1",
        arm="champion",
        digest="d",
        turn=turn,
        prompt_tokens=7,
        completion_tokens=3,
        finish_reason="stop",
        tool_calls=("read", "edit"),
        latency=0.25,
        metadata={"b": 1},
    )


def test_rows_come_back_typed_from_open_and_closed_days(tmp_path: Path) -> None:
    with AuditLog(tmp_path) as log:
        log.append(row("a"), MONDAY)
        open_rows = read_audit(tmp_path)
    closed_rows = read_audit(tmp_path)
    assert files(tmp_path) == ["2026-11-30.parquet", "head.json"]
    assert pq.read_schema(tmp_path / "2026-11-30.parquet").equals(SCHEMA)
    for rows in (open_rows, closed_rows):
        first = rows.iloc[0]
        assert (first["session"], first["prompt_tokens"], first["latency"]) == ("a", 7, 0.25)
        assert list(first["tool_calls"]) == ["read", "edit"]
        assert first["ts"].to_pydatetime() == MONDAY
        assert first["outcome"] is not True and rows["outcome"].isna().all()


def test_the_first_row_of_a_day_rolls_the_day_before(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.append(row("a"), MONDAY)
    log.append(row("b"), TUESDAY)
    deadline = time.monotonic() + 10
    while (tmp_path / "2026-11-30.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert files(tmp_path) == ["2026-11-30.parquet", "2026-12-01.jsonl", "head.json"]
    assert list(read_audit(tmp_path)["session"]) == ["a", "b"]
    assert list(read_audit(tmp_path, days=["2026-12-01"])["session"]) == ["b"]


def test_a_later_run_on_the_same_day_adds_to_its_file(tmp_path: Path) -> None:
    for session in ("a", "b"):
        with AuditLog(tmp_path) as log:
            log.append(row(session), MONDAY)
    assert list(read_audit(tmp_path)["session"]) == ["a", "b"]


def test_a_kill_between_writing_the_day_and_deleting_its_lines_keeps_each_row_once(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.append(row("a"), MONDAY)
    lines = (tmp_path / "2026-11-30.jsonl").read_bytes()
    log.close()
    (tmp_path / "2026-11-30.jsonl").write_bytes(lines)
    assert len(read_audit(tmp_path)) == 1
    AuditLog(tmp_path).close()
    assert len(read_audit(tmp_path)) == 1


def test_a_killed_writer_loses_no_row_that_was_acknowledged(tmp_path: Path) -> None:
    """The child says a row's number once `append` has returned, and is killed in the middle of its writing."""
    program = (
        "import sys, itertools; from pathlib import Path; from tasks.canary.audit import AuditLog, AuditRow\n"
        f"log = AuditLog(Path({str(tmp_path)!r}))\n"
        "for n in itertools.count():\n"
        "    log.append(AuditRow(kind='turn', session='s', release='r', arm='champion', digest='d', turn=n))\n"
        "    print(n, flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    told = [int(child.stdout.readline()) for _ in range(20)]
    child.kill()
    told += [int(line) for line in child.stdout.read().split()]
    child.wait()
    AuditLog(tmp_path).close()
    kept = list(read_audit(tmp_path)["turn"])
    assert kept[: len(told)] == told and len(kept) <= len(told) + 1


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    with AuditLog(tmp_path) as log:
        log.append(row("a"), MONDAY)
        lines = (tmp_path / "2026-11-30.jsonl").read_bytes()
    (tmp_path / "2026-11-30.parquet").unlink()
    (tmp_path / "2026-11-30.jsonl").write_bytes(lines + b'{"kind": "turn", "sess')
    assert list(read_audit(tmp_path)["session"]) == ["a"] and verify(tmp_path).fault is None
    with AuditLog(tmp_path) as log:
        log.append(row("b"), MONDAY)
    assert sorted(read_audit(tmp_path)["session"]) == ["a", "b"]
    assert verify(tmp_path).fault is None


def test_many_threads_write_whole_rows(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    threads = [threading.Thread(target=lambda n=n: [log.append(row(f"s{n}", t)) for t in range(10)]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    rows = read_audit(tmp_path)
    assert sorted(zip(rows["session"], rows["turn"], strict=True)) == [
        (f"s{n}", t) for n in range(8) for t in range(10)
    ]


def test_no_folder_is_no_rows(tmp_path: Path) -> None:
    assert read_audit(tmp_path / "none").empty


def two_days(folder: Path, closed: bool = True) -> None:
    """Three rows of Monday, two of Tuesday."""
    log = AuditLog(folder)
    for number in range(5):
        log.append(row(f"s{number}"), MONDAY if number < 3 else TUESDAY)
    if closed:
        log.close()
    else:  # as a kill leaves it
        log._closer.shutdown()
        log._lock.close()


def changed(path: Path, number: int, **fields: Any) -> None:
    """Rewrite one row of a day, or with no fields remove it."""
    rows = pq.read_table(path).to_pylist()
    rows[number : number + 1] = [rows[number] | fields] if fields else []
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)


def test_an_unbroken_chain_runs_over_days_restarts_and_open_files(tmp_path: Path) -> None:
    two_days(tmp_path, closed=False)
    open_ = verify(tmp_path)
    with AuditLog(tmp_path) as log:
        log.append(row("later"), TUESDAY)
        head = log.head
    found = verify(tmp_path, open_.head.hash)
    assert (open_.rows, open_.fault, found.rows, found.days, found.fault) == (5, None, 6, 2, None)
    assert found.head == head and (head.day, head.seq) == ("2026-12-01", 2)
    assert list(read_audit(tmp_path)["seq"]) == [0, 1, 2, 0, 1, 2]
    lost = verify(tmp_path, "f" * 64).fault
    assert lost is not None and "not in the chain" in lost.reason


@pytest.mark.parametrize(
    ("number", "fields", "faulty"),
    [
        (1, {"outcome": True}, 1),
        (1, {"completion": "{}"}, 1),
        (0, {"latency": 0.251}, 0),
        (2, {"hash": "0" * 64}, 2),
        (1, {}, 1),
    ],
)
def test_a_row_that_was_changed_or_removed_is_named(
    tmp_path: Path, number: int, fields: dict[str, Any], faulty: int
) -> None:
    two_days(tmp_path)
    changed(tmp_path / "2026-11-30.parquet", number, **fields)
    fault = verify(tmp_path).fault
    assert fault is not None and (fault.file, fault.row) == ("2026-11-30.parquet", faulty)


def test_a_changed_open_line_is_named(tmp_path: Path) -> None:
    two_days(tmp_path, closed=False)
    path = tmp_path / "2026-12-01.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1].replace('"s4"', '"s9"'))
    fault = verify(tmp_path).fault
    assert fault is not None and (fault.file, fault.row) == ("2026-12-01.jsonl", 1)
    path.write_text(lines[0] + "{}\n")
    fault = verify(tmp_path).fault
    assert fault is not None and fault.row == 1 and "not a row" in fault.reason


def test_rows_cut_off_at_the_end_are_missed_also_after_the_log_went_on(tmp_path: Path) -> None:
    two_days(tmp_path)
    changed(tmp_path / "2026-12-01.parquet", 1)
    fault = verify(tmp_path).fault
    assert fault is not None and (fault.file, fault.row) == ("2026-12-01", 1) and "the end is gone" in fault.reason
    with AuditLog(tmp_path) as log:
        log.append(row("later"), TUESDAY)
    fault = verify(tmp_path).fault
    assert fault is not None and (fault.file, fault.row) == ("2026-12-01.parquet", 1)


def test_a_whole_day_or_the_head_that_is_gone_is_missed(tmp_path: Path) -> None:
    two_days(tmp_path)
    (tmp_path / "2026-11-30.parquet").rename(tmp_path / "kept")
    fault = verify(tmp_path).fault
    assert fault is not None and (fault.file, fault.row) == ("2026-12-01.parquet", 0)
    (tmp_path / "kept").rename(tmp_path / "2026-11-30.parquet")
    assert verify(tmp_path).fault is None
    (tmp_path / "head.json").unlink()
    fault = verify(tmp_path).fault
    assert fault is not None and fault.file == "head.json"


def test_retention_removes_rows_and_leaves_the_chain_whole(tmp_path: Path) -> None:
    two_days(tmp_path)
    expire(tmp_path, "2026-12-31", 30)
    assert files(tmp_path) == ["2026-11-30.removed.json", "2026-12-01.parquet", "head.json"]
    assert list(read_audit(tmp_path)["session"]) == ["s3", "s4"]
    found = verify(tmp_path)
    assert (found.rows, found.removed, found.fault) == (2, 1, None)
    expire(tmp_path, "2027-12-31", 30)
    with AuditLog(tmp_path) as log:
        log.append(row("later"), datetime(2027, 12, 31, tzinfo=UTC))
    found = verify(tmp_path)
    assert (found.rows, found.removed, found.fault) == (1, 2, None)
    (tmp_path / "2026-11-30.removed.json").unlink()
    assert verify(tmp_path).fault is not None


def test_rows_that_wait_share_one_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append(1), time.sleep(0.02), real(file)))
    with AuditLog(tmp_path) as log:
        written = [log.submit(row(f"s{number}"), MONDAY) for number in range(200)]
        for future in written:
            future.result()
        assert len(calls) < 20
    assert verify(tmp_path).rows == 200


def test_a_write_that_fails_is_told_and_breaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with AuditLog(tmp_path) as log:
        log.append(row("a"), MONDAY)

        def full(file: int) -> None:
            raise OSError("no space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="no space"):
                log.append(row("b"), MONDAY)
        log.append(row("c"), MONDAY)
    assert list(read_audit(tmp_path)["session"]) == ["a", "c"] and verify(tmp_path).fault is None


def test_a_day_is_never_closed_while_rows_go_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing runs beside writing, and may come late."""
    ready, real = threading.Event(), AuditLog._settle
    monkeypatch.setattr(AuditLog, "_settle", lambda log, **kind: (ready.wait(10), real(log, **kind)))
    log = AuditLog(tmp_path)
    for number, now in enumerate([MONDAY, TUESDAY, TUESDAY]):
        log.append(row(f"s{number}"), now)
    ready.set()
    log._closer.shutdown()
    assert files(tmp_path) == ["2026-11-30.parquet", "2026-12-01.jsonl", "head.json"]
    log.append(row("s3"), TUESDAY)
    log.close()
    assert list(read_audit(tmp_path)["session"]) == ["s0", "s1", "s2", "s3"] and verify(tmp_path).fault is None


def test_two_logs_never_write_one_folder(tmp_path: Path) -> None:
    with AuditLog(tmp_path), pytest.raises(UserError, match="another process writes"):
        AuditLog(tmp_path)
    AuditLog(tmp_path).close()


def test_only_sessions_that_agreed_may_be_learned_from(tmp_path: Path) -> None:
    with AuditLog(tmp_path) as log:
        for session, agreed, shadow in [("yes", True, False), ("no", False, False), ("yes", True, True)]:
            log.append(row(session).model_copy(update={"trainable": agreed, "shadow": shadow}))
        log.append(row("half").model_copy(update={"trainable": True}))
        log.append(row("half"))
        rows = training_sessions(tmp_path)
    assert list(rows["session"]) == ["yes"] and not rows["shadow"].any()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.builds(row, st.text(st.characters(codec="utf-8"), min_size=1)), min_size=1, max_size=5), st.text())
def test_whatever_is_said_comes_back_and_verifies(rows: list[AuditRow], said: str) -> None:
    said = json.dumps([{"role": "user", "content": said}])
    with tempfile.TemporaryDirectory() as folder:
        with AuditLog(Path(folder)) as log:
            for one in rows:
                log.append(one.model_copy(update={"prompt": said}))
            assert verify(Path(folder)).fault is None
        back = read_audit(Path(folder))
        assert verify(Path(folder)).fault is None
    assert list(back["session"]) == [one.session for one in rows] and set(back["prompt"]) == {said}


def test_the_command_says_where_the_chain_breaks_and_ends_with_1(tmp_path: Path) -> None:
    folder = ServiceFolder(tmp_path, "agent").audit
    two_days(folder)
    ask = CliRunner().invoke
    whole = ask(app, ["verify", "--home", str(tmp_path)])
    assert whole.exit_code == 0 and "5 rows in 2 days: unbroken" in whole.output
    assert "release-1 (champion, d)" in ask(app, ["show", "s2", "--home", str(tmp_path)]).output
    assert "2026-11-30 local  release-1 champion" in ask(app, ["stats", str(folder)]).output
    changed(folder / "2026-12-01.parquet", 0, tenant="other")
    broken = ask(app, ["verify", str(folder)])
    assert broken.exit_code == 1 and f"{folder / '2026-12-01.parquet'}, row 0" in broken.output
