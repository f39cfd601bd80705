"""Files come back as they were written, or say what is wrong with them."""

from __future__ import annotations

import json
import math
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_contracts.errors import UserError
from data_contracts.records import HORIZONS, Sampling, Segment, ToolCall, Trajectory, Turn
from data_contracts.store import (
    append_jsonl,
    frame_of,
    read_frame,
    read_json,
    read_jsonl,
    read_segments,
    read_trajectories,
    records_of,
    write_atomic,
    write_json,
    write_segments,
    write_trajectories,
)

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FINITE = st.floats(allow_nan=False, allow_infinity=False)
INT32 = st.integers(-(2**31), 2**31 - 1)
NUMBER = st.integers(0, 2**62)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | FINITE | st.text(), lambda j: st.lists(j), max_leaves=4)
CALLS = st.builds(ToolCall, name=st.text(), arguments=st.dictionaries(st.text(), JSON, max_size=2))
TURNS = st.builds(
    Turn,
    index=NUMBER,
    completion=st.text(),
    observation=st.text(),
    calls=st.lists(CALLS, max_size=2).map(tuple),
    call_errors=st.lists(st.text(), max_size=2).map(tuple),
    sample_seconds=FINITE,
)
TRAJECTORIES = st.builds(
    Trajectory,
    id=st.text(),
    iteration=st.integers(-(2**62), 2**62),
    horizon=st.sampled_from(HORIZONS),
    sampling=st.builds(Sampling, temperature=st.floats(0, 9), seed=st.integers()),
    turns=st.lists(TURNS, max_size=3).map(tuple),
    prompt_ids=st.lists(INT32, max_size=5),
    detail=st.text(),
    **dict.fromkeys(("rollout_index", "sampled_tokens", "context_tokens", "malformed_calls", "tool_errors"), NUMBER),
    submitted=st.booleans(),
    files=st.dictionaries(st.text(), st.text(), max_size=2),
    visible_passed=st.none() | NUMBER,
    hidden_passed=st.none() | NUMBER,
    visible_total=NUMBER,
    hidden_total=NUMBER,
    outcome=st.none() | st.booleans(),
    rewards=st.dictionaries(st.text(), FINITE, max_size=3),
    seconds=FINITE,
)


@st.composite
def segment_strategy(draw: st.DrawFn) -> Segment:
    length = draw(st.integers(0, 6))

    def column(values: st.SearchStrategy) -> list:
        return draw(st.lists(values, min_size=length, max_size=length))

    return Segment(
        trajectory_id=draw(st.text()),
        index=draw(NUMBER),
        token_ids=column(INT32),
        loss_mask=column(st.integers(-128, 127)),
        rollout_logprobs=column(FINITE),
        turn_index=column(INT32),
        advantages=column(FINITE) if draw(st.booleans()) else None,
        routed_experts=column(st.lists(INT32, max_size=3)) if draw(st.booleans()) else None,
    )


@QUICK
@given(records=st.lists(TRAJECTORIES, max_size=3))
def test_trajectories_round_trip_exactly(tmp_path, records):
    write_trajectories(tmp_path / "t.parquet", records)
    assert read_trajectories(tmp_path / "t.parquet") == records
    assert records_of("trajectories", frame_of("trajectories", records)) == records


@QUICK
@given(records=st.lists(segment_strategy(), max_size=3))
def test_segments_round_trip_exactly(tmp_path, records):
    write_segments(tmp_path / "s.parquet", records)
    assert read_segments(tmp_path / "s.parquet") == records
    assert records_of("segments", read_frame(tmp_path / "s.parquet", "segments")) == records


def test_log_probabilities_keep_float64(tmp_path, segment):
    value = -0.1234567890123456
    write_segments(tmp_path / "s.parquet", [segment(0, rollout_logprobs=[value] * 10)])
    assert read_segments(tmp_path / "s.parquet")[0].rollout_logprobs[3] == value
    types = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "s.parquet")}
    assert types["rollout_logprobs"] == types["advantages"] == "list<element: double>"
    assert types["token_ids"] == "list<element: int32>"


def test_a_table_of_other_columns_is_refused(tmp_path, trajectories):
    path = tmp_path / "s.parquet"
    write_trajectories(path, trajectories)
    with pytest.raises(
        UserError, match=r"s.parquet: columns differ .* segments 1.3.0, it was written as trajectories 3.0.0"
    ):
        read_segments(path)
    pq.write_table(pa.table({"id": [1]}), path)
    with pytest.raises(UserError, match=r"contract trajectories 3.0.0 \(context_tokens, .*start a new run"):
        read_trajectories(path)
    path.write_bytes(b"PAR1 torn")
    with pytest.raises(UserError, match="not a Parquet file"):
        read_trajectories(path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "run" / "state.json"
    write_json(path, {"a": 1})

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, "half")
    assert read_json(path) == {"a": 1}


def test_json_is_strict(tmp_path, trajectory):
    path = tmp_path / "m.json"
    write_json(path, {"loss": math.nan, "best": [math.inf, 1.5], "é": trajectory(0)})
    text = path.read_text(encoding="utf-8")
    assert "NaN" not in text and "Infinity" not in text and "é" in text
    assert read_json(path)["loss"] is None
    assert read_json(path)["best"] == [None, 1.5]
    assert Trajectory.model_validate(read_json(path)["é"]) == trajectory(0)
    path.write_text('{"a": ')
    with pytest.raises(UserError, match=r"m.json: not JSON .*written again"):
        read_json(path)


@given(rows=st.lists(st.dictionaries(st.text(), JSON, max_size=2), min_size=1, max_size=4), data=st.data())
@QUICK
def test_a_torn_last_line_is_dropped_and_the_journal_goes_on(tmp_path, rows, data):
    path = tmp_path / "journal.jsonl"
    path.unlink(missing_ok=True)
    for row in rows:
        append_jsonl(path, json.dumps(row))
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    cut = data.draw(st.integers(0, last))
    path.write_bytes(whole[: len(whole) - cut])

    kept = rows if cut <= 1 else rows[:-1]
    assert read_jsonl(path) == (kept, int(1 < cut < last))
    append_jsonl(path, '{"next": 1}')
    assert read_jsonl(path) == ([*kept, {"next": 1}], 0)


def test_any_other_broken_line_is_an_error(tmp_path):
    path = tmp_path / "journal.jsonl"
    assert read_jsonl(path) == ([], 0)
    path.write_bytes(b'{"a": 1}\n{"b": \n{"c": 3}\n')
    with pytest.raises(UserError, match=r"journal.jsonl:2: not JSON"):
        read_jsonl(path)
    with pytest.raises(ValueError, match="line break"):
        append_jsonl(path, '{\n"a": 1}')
