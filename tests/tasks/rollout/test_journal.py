"""Finished rollouts survive a kill; each is counted once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_contracts.errors import UserError
from data_contracts.records import Rollout, Segment, Trajectory
from tasks.rollout.journal import Journal

Make = Callable[..., Trajectory]


def rollout(make_trajectory: Make, n: int, logprob: float = -0.1) -> Rollout:
    trajectory = make_trajectory("p", n)
    segment = Segment(
        trajectory_id=trajectory.id, token_ids=[1, 2], loss_mask=[0, 1], rollout_logprobs=[0.0, logprob],
        turn_index=[0, 0],
    )  # fmt: skip
    return Rollout(trajectory=trajectory, segments=(segment,))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "iterations" / "00007" / "journal.jsonl"


def test_what_was_added_is_there_when_opened_again(path: Path, make_trajectory: Make) -> None:
    first = Journal(path)
    kept = [rollout(make_trajectory, n) for n in range(3)]
    for one in kept:
        first.add(one)
    again = Journal(path)
    assert [again.finished(one.trajectory.id) for one in kept] == kept
    assert (len(again), again.torn, again.finished("other")) == (3, 0, None)


@given(logprob=st.floats(max_value=0, allow_infinity=False, allow_nan=False))
def test_logprobs_come_back_to_the_bit(logprob: float) -> None:
    segment = Segment(trajectory_id="t", token_ids=[1], loss_mask=[1], rollout_logprobs=[logprob], turn_index=[0])
    assert Segment.model_validate_json(segment.model_dump_json()).rollout_logprobs == [logprob]


@pytest.mark.parametrize("keep", [1, 40, -2])
def test_a_line_torn_by_a_kill_is_dropped_and_its_rollout_is_made_again(
    path: Path, make_trajectory: Make, keep: int
) -> None:
    journal = Journal(path)
    journal.add(rollout(make_trajectory, 0))
    whole = path.read_bytes()
    journal.add(rollout(make_trajectory, 1))
    path.write_bytes(whole + path.read_bytes()[len(whole) :][:keep])
    again = Journal(path)
    assert (len(again), again.torn) == (1, 1)
    again.add(rollout(make_trajectory, 1))
    final = Journal(path)
    assert (len(final), final.torn) == (2, 0)
    assert path.read_bytes().count(b"\n") == 2


def test_one_rollout_is_counted_once(path: Path, make_trajectory: Make) -> None:
    journal = Journal(path)
    journal.add(rollout(make_trajectory, 0, logprob=-0.1))
    with pytest.raises(ValueError, match="in the journal already"):
        journal.add(rollout(make_trajectory, 0))
    # Two processes that wrote one id: the first line holds.
    path.write_bytes(path.read_bytes() + rollout(make_trajectory, 0, logprob=-0.9).model_dump_json().encode() + b"\n")
    again = Journal(path)
    found = again.finished("p-0")
    assert len(again) == 1
    assert found is not None
    assert found.segments[0].rollout_logprobs == [0.0, -0.1]


def test_a_line_that_is_no_rollout_is_named(path: Path, make_trajectory: Make) -> None:
    Journal(path).add(rollout(make_trajectory, 0))
    path.write_bytes(path.read_bytes() + b'{"trajectory": {}}\n')
    with pytest.raises(UserError, match=r"journal\.jsonl:2: no rollout \(trajectory\.id"):
        Journal(path)
