"""The audit log: nothing lost by a kill, nothing twice, one Parquet file a day, and every change found."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq

from tasks.canary.audit import SCHEMA, AuditLog, AuditRow, read_audit, verify

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
