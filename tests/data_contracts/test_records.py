"""Records refuse what must never be."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from data_contracts.records import INFRASTRUCTURE, Problem, Rollout, Segment, Trajectory


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret.py", "a/../../b.py", ""])
def test_file_paths_stay_inside(problem, path):
    with pytest.raises(ValidationError, match="leaves the problem's folder"):
        problem(files={path: "", "add.py": ""})


def test_a_solution_changes_files_of_the_problem(problem):
    with pytest.raises(ValidationError, match=r"does not have: \['other.py'\]"):
        problem(solution={"other.py": ""})


@pytest.mark.parametrize("column", ["loss_mask", "rollout_logprobs", "turn_index", "advantages", "routed_experts"])
def test_token_columns_have_one_length(segment, column):
    values = [[0]] * 9 if column == "routed_experts" else [0] * 9
    with pytest.raises(ValidationError, match="token columns differ in length"):
        segment(0, **{column: values})
    whole = [[0]] * 10 if column == "routed_experts" else [0] * 10
    assert len(getattr(segment(0, **{column: whole}), column)) == 10


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_is_infinite_or_nan(segment, trajectory, value):
    with pytest.raises(ValidationError, match="finite"):
        segment(0, rollout_logprobs=[value] * 10)
    with pytest.raises(ValidationError, match="finite"):
        trajectory(0, rewards={"outcome": value})


def test_a_misspelt_field_is_refused(trajectory):
    with pytest.raises(ValidationError, match="Extra inputs"):
        trajectory(0, sampeld_tokens=5)


@pytest.mark.parametrize("status", ["completed", "out_of_turns", "out_of_tokens", *sorted(INFRASTRUCTURE)])
def test_only_verified_rollouts_that_ended_by_themselves_are_scorable(trajectory, status):
    assert trajectory(0, status=status, outcome=False).scorable is (status not in INFRASTRUCTURE)
    assert trajectory(0, status=status, outcome=None).scorable is False


def test_records_round_trip_through_json(problem, trajectory, segment):
    rollout = Rollout(trajectory=trajectory(1), segments=(segment(1), segment(1, 1)))
    assert Rollout.model_validate_json(rollout.model_dump_json()) == rollout
    assert Problem.model_validate_json(problem().model_dump_json()) == problem()


def test_records_are_frozen(trajectory, segment):
    for record in (trajectory(0), segment(0)):
        assert isinstance(record, Trajectory | Segment)
        with pytest.raises(ValidationError, match="frozen"):
            record.index = 3
