"""Bad inputs of many kinds end in a clear refusal or in quarantine; how many were tried and lost is counted.

Lost: a bad row that was accepted, a good neighbour that was not, a row that quarantine does not hold, or an exception
other than a UserError.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.checking import check_path
from data_contracts.contract import TABLES, load_contract
from data_contracts.errors import UserError
from data_contracts.odcs import Column
from data_contracts.quarantine import Quarantine
from data_contracts.store import frame_of, read_frame, write_segments, write_trajectories
from data_contracts.validate import validate

SURROGATE = "\ud83d"
HUGE = "x" * 2_000_000
TEXT = [None, 7, 1.5, True, b"bytes", ["list"], {"a": 1}, SURROGATE, math.nan]
NUMBERS = [None, math.nan, math.inf, -math.inf, "5", b"5", [1], {"a": 1}, 2**63, -(2**63) - 1]
JUNK: dict[str, list[Any]] = {
    "string": TEXT,
    "integer": [*NUMBERS, 1.9, True, np.float32(0.5)],
    "number": [*NUMBERS[:-2], True],
    "boolean": [None, 0, 1, 0.5, "true", [True], math.nan],
    "timestamp": [None, "2026-12-01", 7, "yesterday", pd.Timestamp("2026-12-01"), ["2026"]],
    "array": [None, 7, "abc", {"a": 1}, math.nan, [None], [[[1]]], [1, [2]], [{}], [b"x"], [SURROGATE]],
}
NOT_JSON = ["{", "[1,", "nul", "[" * 50_000, HUGE, '{"a": 1}}', "\x00", '"\\ud800"', "7"]
WRONG_ARRAYS = [[math.nan], [math.inf], [0, 1.5], ["1"], [True], np.array([0.5]), np.array(["a"]), [2**40], [-5]]


def cells_of(column: Column) -> Iterator[Any]:
    """Cells that the column must not accept."""
    for value in JUNK[column.logical_type]:
        missing = value is None or (isinstance(value, float) and math.isnan(value))
        if not (missing and not column.required):
            yield value
    if column.json_shape is not None:
        yield from NOT_JSON
    if column.valid_values is not None:
        yield from ["", HUGE, column.valid_values[0].upper()]
    if column.logical_type_options.min_length:
        yield ""
    if column.items is not None and column.items.logical_type == "integer":
        yield from (value for value in WRONG_ARRAYS)
    if column.logical_type_options.minimum is not None:
        yield column.logical_type_options.minimum - 1


def whole(table: str, count: int, problem: Any, trajectory: Any, segment: Any) -> pd.DataFrame:
    """So many valid rows of a table."""
    makes = {"problems": lambda n: problem(f"p-{n}"), "trajectories": trajectory, "segments": segment}
    if table in makes:
        return frame_of(table, [makes[table](number) for number in range(count)]).astype(object)
    digest = "a" * 64
    turn = {"index": 0, "completion": "", "completion_tokens": 2, "prompt_tokens": 3, "finish_reason": "stop"}
    turn |= {"calls": "[]", "call_errors": [], "observation": "", "answers": "[]", "tool_failed": False}
    turn |= {"policy_version": "", "policy_digest": digest, "sample_seconds": 0.1, "tool_seconds": 0.0}
    turn |= {"changed": "{}", "visible": None, "progress": None, "purpose": "work", "segment": 0, "cached_tokens": 0}
    turn |= {"origins": "{}", "prompt_kept": True}
    audit = {"kind": "turn", "ts": pd.Timestamp("2026-12-01", tz="UTC"), "tenant": "t", "session": "s", "turn": 0}
    audit |= {"release": "release-1", "arm": "champion", "stage": 0, "shadow": False, "trainable": False}
    audit |= {"digest": digest, "status": "ok", "prompt_tokens": 3, "cached_tokens": 1, "completion_tokens": 2}
    audit |= {"finish_reason": "stop", "tool_calls": ["run"], "call_errors": 0, "latency": 0.5, "outcome": None}
    audit |= {"metadata": "{}", "prompt": "[]", "completion": "{}", "seq": 0}
    part = {"model": "m", "version": 1, "digest": digest, "stored": "copied", "source": "s", "files": {"f": digest}}
    release = {"name": "agent", "run_id": "r", "created": "2026-12-01T00:00:00Z", "policy_version": "policy-00001"}
    release |= {"components": json.dumps({"base": content(part), "policy": content(part)}), "datasets": "{}"}
    release |= {"contract_versions": "{}", "recipe": "{}", "code_revision": "c", "evidence": "[]"}
    makers: dict[str, Callable[[int], dict[str, Any]]] = {
        "turns": lambda n: {"trajectory_id": f"r-{n}", **turn},
        "audit": lambda n: {"event": f"e-{n}", **audit, "hash": f"{n:064x}"},
        "releases": lambda n: {"key": f"{n:064x}", **release},
    }
    names = [column.name for column in load_contract(table).columns]
    return pd.DataFrame([makers[table](n) for n in range(count)], dtype=object)[names]


def content(part: dict[str, Any]) -> dict[str, Any]:
    lines = "".join(f"{name}\0{digest}\n" for name, digest in sorted(part["files"].items()))
    return {**part, "content": hashlib.sha256(lines.encode()).hexdigest()}


def lost_cells(table: str, frame: pd.DataFrame, column: str, values: list[Any], folder: Path) -> dict[int, str]:
    """What was lost when the rows between the first and the last hold the values, by the row."""
    bad = frame.copy()
    bad[column] = pd.Series([bad[column].iloc[0], *values, bad[column].iloc[-1]], dtype=object)
    result = validate(table, bad)
    lost = {row: "accepted" for row in range(1, len(values) + 1)} | {0: "refused", len(values) + 1: "refused"}
    for rejection in result.rejected:
        if rejection.row is not None and rejection.rule.startswith(column) and column in rejection.reason:
            lost.pop(rejection.row, None)
    for row in {0, len(values) + 1} - {rejection.row for rejection in result.rejected}:
        del lost[row]
    quarantine = Quarantine(folder)
    quarantine.add(table, result.rows_with_reasons(), "run", 0)
    kept = {json.dumps(line["row"], sort_keys=True) for line in quarantine.rows(table)}
    return lost if len(result.accepted) == 2 and kept else {**lost, -1: "not in quarantine"}


@pytest.mark.parametrize("table", TABLES)
def test_no_bad_cell_is_lost(table, problem, trajectory, segment, tmp_path):
    tried, lost = 0, {}
    for column in load_contract(table).columns:
        values = list(cells_of(column))
        frame = whole(table, len(values) + 2, problem, trajectory, segment)
        found = lost_cells(table, frame, column.name, values, tmp_path / column.name)
        lost |= {(column.name, repr(values[row - 1])[:40]): what for row, what in found.items()}
        tried += len(values)
    print(f"{table}: {tried} bad cells tried, {len(lost)} lost")
    assert (len(lost), lost) == (0, {})
    assert tried >= 60


def tables_gone_wrong(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Whole tables that are none: each row is refused."""
    first = frame.columns[0]
    yield "empty", frame.iloc[:0]
    yield "no columns", pd.DataFrame(index=range(3))
    yield "a column more", frame.assign(extra=1)
    yield "renamed", frame.rename(columns={first: first.upper()})
    yield "column twice", frame[[*frame.columns, first]]
    for name in frame.columns:
        yield f"without {name}", frame.drop(columns=name)


@pytest.mark.parametrize("table", TABLES)
def test_no_bad_table_is_accepted(table, problem, trajectory, segment):
    tried = list(tables_gone_wrong(whole(table, 3, problem, trajectory, segment)))
    results = {name: validate(table, frame) for name, frame in tried}
    lost = [name for name, result in results.items() if len(result.accepted) or not result.rejected]
    print(f"{table}: {len(tried)} bad tables tried, {len(lost)} lost")
    assert lost == []


def test_duplicates_are_dropped_and_the_first_is_kept(problem, trajectory, segment):
    for table in TABLES:
        frame = whole(table, 3, problem, trajectory, segment)
        result = validate(table, pd.concat([frame, frame.iloc[[1, 1]]], ignore_index=True))
        assert Counter(rejection.row for rejection in result.rejected).keys() == {3, 4}, table
        assert len(result.accepted) == 3


def bad_files(folder: Path, trajectories: Any, segments: Any) -> Iterator[Path]:
    """Files that are no table, or not whole."""
    good = folder / "good.parquet"
    write_segments(good, segments)
    data = good.read_bytes()
    for cut in range(0, len(data), max(1, len(data) // 40)):
        path = folder / f"cut-{cut}.parquet"
        path.write_bytes(data[:cut])
        yield path
    table = pq.read_table(good)
    for name, mark in {"later": "segments 99.0.0", "other": "trajectories 3.0.0", "none": "lost 1.0.0"}.items():
        pq.write_table(table.replace_schema_metadata({"contract": mark}), folder / f"{name}.parquet")
        yield folder / f"{name}.parquet"
    pq.write_table(table.drop_columns(["loss_mask"]), folder / "short.parquet")
    yield folder / "short.parquet"
    wrong = table.set_column(2, "token_ids", pa.array([["a"]] * len(table)))
    pq.write_table(wrong, folder / "typed.parquet")
    yield folder / "typed.parquet"
    for name, content in {"text": b"hello", "null": b"\0" * 99, "magic": b"PAR1PAR1", "utf8": b"\xff\xfe{"}.items():
        (folder / f"{name}.parquet").write_bytes(content)
        yield folder / f"{name}.parquet"
    write_trajectories(folder / "whole.parquet", trajectories)
    yield folder / "whole.parquet"


def test_no_bad_file_is_read(tmp_path, trajectories, segments):
    tried, lost = 0, []
    for path in bad_files(tmp_path, trajectories, segments):
        tried += 1
        try:
            read_frame(path, "segments")
        except UserError as error:
            if str(path) not in str(error):
                lost.append(path.name)
        else:
            lost.append(path.name)
    print(f"{tried} bad files tried, {len(lost)} lost")
    assert lost == []
    assert tried >= 45


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("problems.jsonl", b'{"id": \n'),
        ("problems.jsonl", b"\xff\xfe\n"),
        ("problems.jsonl", b"[1]\n"),
        ("problems.jsonl", b""),
        ("manifest.json", b"{"),
        ("manifest.json", b"[]"),
        ("manifest.json", b"{}"),
        ("manifest.json", b"\xff"),
        ("2026-12-01.jsonl", b"{\n{}\n"),
        ("2026-12-01.jsonl", b"7\n"),
        ("2026-12-01.jsonl", b"{}\n"),
        ("2026-12-01.jsonl", b""),
        ("table.csv", b"a,b"),
    ],
)
def test_other_files_are_refused_or_hold_nothing(tmp_path, name, text):
    (tmp_path / name).write_bytes(text)
    try:
        ((_, found),) = check_path(tmp_path / name)
    except UserError as error:
        assert str(tmp_path / name) in str(error)
    else:
        assert found.accepted.empty
        assert found.rejected
