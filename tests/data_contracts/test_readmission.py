"""The way out of quarantine: a rollout goes back whole when it holds now, or it is said why not."""

from __future__ import annotations

import json

import pytest

from data_contracts.quarantine import Quarantine
from data_contracts.readmission import readmit
from data_contracts.store import frame_of, read_segments, read_trajectories, write_segments, write_trajectories
from data_contracts.validate import validate_rollouts
from data_contracts.verdicts import Rejection


@pytest.fixture
def place(tmp_path, trajectories, segments):
    """Rollout r-3 was dropped: a rule refused its (sound) trajectory, and its segment went with it."""
    write_trajectories(tmp_path / "t.parquet", [one for one in trajectories if one.id != "r-3"])
    write_segments(tmp_path / "s.parquet", [one for one in segments if one.trajectory_id != "r-3"])
    quarantine = Quarantine(tmp_path / "quarantine")
    for table, records, rule in (
        ("trajectories", trajectories, "one_problem_per_group"),
        ("segments", segments, "belongs_to_trajectory"),
    ):
        row = frame_of(table, records).iloc[3].to_dict()
        key = "r-3" if table == "trajectories" else "r-3/0"
        quarantine.add(table, [(Rejection(3, key, rule, "as it was then"), row)], "run", 3)
    return quarantine, tmp_path / "t.parquet", tmp_path / "s.parquet"


def test_a_rollout_that_holds_now_goes_back_and_is_marked(place, trajectories, segments):
    quarantine, whole, parts = place
    segment, trajectory = quarantine.dropped()
    assert (segment.table, trajectory.table, trajectory.released) == ("segments", "trajectories", None)
    assert readmit(quarantine, segment, whole, parts, "the rule was wrong") == []
    assert sorted(read_trajectories(whole), key=lambda one: one.id) == trajectories
    assert sorted(read_segments(parts), key=lambda one: one.trajectory_id) == segments
    assert [row.released.endswith(": the rule was wrong") for row in quarantine.dropped()] == [True, True]
    assert quarantine.counts() == {"belongs_to_trajectory": 1, "one_problem_per_group": 1}
    assert readmit(quarantine, trajectory, whole, parts, "again") == []
    assert len(read_trajectories(whole)) == 8


def test_a_rollout_that_does_not_hold_stays_and_nothing_is_written(tmp_path, trajectories, segments):
    frame = frame_of("trajectories", trajectories)
    frame.loc[3, "outcome"] = True
    results = validate_rollouts(frame, frame_of("segments", segments))
    write_trajectories(tmp_path / "t.parquet", trajectories[:3])
    write_segments(tmp_path / "s.parquet", segments[:3])
    before = (tmp_path / "t.parquet").read_bytes(), (tmp_path / "s.parquet").read_bytes()
    quarantine = Quarantine(tmp_path / "quarantine")
    for result in results:
        quarantine.add(result.table, result.rows_with_reasons(), "run", 3)
    for row in quarantine.dropped():
        against = readmit(quarantine, row, tmp_path / "t.parquet", tmp_path / "s.parquet", "please")
        assert against[0].startswith("r-3: outcome_matches_checks: ")
        assert against[1].startswith("r-3/0: belongs_to_trajectory: ")
    assert before == ((tmp_path / "t.parquet").read_bytes(), (tmp_path / "s.parquet").read_bytes())
    assert {row.released for row in quarantine.dropped()} == {None}


def test_what_was_measured_cannot_be_asked_again(place, trajectory):
    quarantine, whole, parts = place
    row = trajectory(3).model_dump(mode="json")
    quarantine.add("trajectories", [(Rejection(None, "r-3", "within_window", "too long"), row)], "run", 3)
    against = readmit(quarantine, quarantine.dropped()[0], whole, parts, "why")
    assert against == ["within_window is no rule of its contract but was measured: it cannot be asked again here"]
    quarantine.add("problems", [(Rejection(None, "p-1", "flaky", "two verdicts"), {"id": "p-1"})], "run", 0)
    (problem,) = [row for row in quarantine.dropped() if row.table == "problems"]
    assert "run intake again" in readmit(quarantine, problem, whole, parts, "why")[0]


def test_a_segment_alone_does_not_go_back(place):
    quarantine, whole, parts = place
    (quarantine.folder / "trajectories.jsonl").unlink()
    (segment,) = quarantine.dropped()
    assert readmit(quarantine, segment, whole, parts, "why")[0].startswith("r-3/0: belongs_to_trajectory")


def test_ids_name_one_row_and_rule_each(place):
    quarantine, *_ = place
    lines = [json.dumps(row._asdict()) for row in quarantine.dropped()]
    assert len({row.id for row in quarantine.dropped()}) == len(lines) == 2
    assert [row.id for row in quarantine.dropped()] == [row.id for row in Quarantine(quarantine.folder).dropped()]
