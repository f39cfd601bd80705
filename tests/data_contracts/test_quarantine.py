"""Dropped rows are kept once, counted by rule, in strict JSON."""

from __future__ import annotations

import json
import math

from data_contracts.quarantine import Quarantine
from data_contracts.store import frame_of
from data_contracts.validate import validate


def broken_segments(segments):
    frame = frame_of("segments", segments)
    frame.at[2, "rollout_logprobs"] = [-math.inf] + [0.0] * 9
    frame.at[5, "turn_index"] = [0] * 9
    return validate("segments", frame)


def test_rows_are_kept_with_rule_and_content(tmp_path, segments):
    quarantine = Quarantine(tmp_path / "quarantine")
    assert quarantine.counts() == {}
    assert quarantine.add("segments", broken_segments(segments).rows_with_reasons(), "run", 3) == 2
    length, finite = quarantine.rows("segments")
    assert (length["key"], length["rule"], length["run_id"], length["iteration"]) == (
        "r-5/0",
        "lengths_equal",
        "run",
        3,
    )
    assert length["reason"] == "All token columns of a segment have one length."
    assert length["row"]["turn_index"] == [0] * 9
    assert (finite["key"], finite["rule"]) == ("r-2/0", "finite_logprobs")
    assert finite["row"]["rollout_logprobs"] == ["-inf"] + [0.0] * 9
    assert finite["row"]["advantages"] is None
    assert quarantine.counts() == quarantine.counts("segments") == {"lengths_equal": 1, "finite_logprobs": 1}


def test_a_second_run_of_the_stage_adds_nothing(tmp_path, segments):
    result = broken_segments(segments)
    Quarantine(tmp_path).add("segments", result.rows_with_reasons(), "run", 3)
    assert Quarantine(tmp_path).add("segments", result.rows_with_reasons(), "run", 3) == 0
    assert Quarantine(tmp_path).counts() == {"lengths_equal": 1, "finite_logprobs": 1}


def test_a_kill_in_mid_write_converges(tmp_path, segments):
    result = broken_segments(segments)
    quarantine = Quarantine(tmp_path)
    quarantine.add("segments", result.rows_with_reasons(), "run", 3)
    file = tmp_path / "segments.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    assert quarantine.counts() == {"lengths_equal": 1}
    assert quarantine.add("segments", result.rows_with_reasons(), "run", 3) == 1
    assert quarantine.counts() == {"lengths_equal": 1, "finite_logprobs": 1}


def test_tables_are_counted_together_and_apart(tmp_path, trajectories, segments):
    quarantine = Quarantine(tmp_path)
    frame = frame_of("trajectories", [*trajectories, trajectories[0]])
    frame.loc[1, "outcome"] = True
    quarantine.add("trajectories", validate("trajectories", frame).rows_with_reasons(), "run", 1)
    quarantine.add("segments", broken_segments(segments).rows_with_reasons(), "run", 1)
    assert quarantine.counts("trajectories") == {"id.unique": 1, "outcome_matches_checks": 1}
    assert sum(quarantine.counts().values()) == 4
    for file in tmp_path.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            json.loads(line, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))


def test_an_empty_table_is_noted_once_an_iteration(tmp_path):
    quarantine = Quarantine(tmp_path)
    nothing = validate("segments", frame_of("segments", []))
    for iteration in (1, 2, 2):
        quarantine.add("segments", nothing.rows_with_reasons(), "run", iteration)
    assert [line["key"] for line in quarantine.rows("segments")] == ["run/00001", "run/00002"]
    assert quarantine.counts() == {"minimum_rows": 2}
