"""What of the sampled rollouts goes on, and what is kept aside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from data_contracts.quarantine import Quarantine
from data_contracts.records import Rollout, Segment, Trajectory, Turn
from data_contracts.store import read_segments, read_trajectories
from tasks.rollout.batch import keep_valid


def rollout(make_trajectory: Callable[..., Trajectory], index: int, length: int) -> Rollout:
    turn = Turn(
        index=0, completion="a", completion_tokens=1, prompt_tokens=length - 1, finish_reason="stop", policy_digest="d"
    )
    trajectory = make_trajectory(
        "p", index, outcome=None, turns=(turn,), prompt_ids=[1] * (length - 1), context_tokens=length
    )
    segment = Segment(
        trajectory_id=trajectory.id, token_ids=[1] * length, loss_mask=[0] * (length - 1) + [1],
        rollout_logprobs=[0.0] * (length - 1) + [-0.5], turn_index=[0] * length,
    )  # fmt: skip
    return Rollout(trajectory=trajectory, segments=(segment,))


def test_a_segment_beyond_the_models_window_is_named_counted_and_survived(
    make_trajectory: Callable[..., Trajectory], tmp_path: Path
) -> None:
    rollouts = [rollout(make_trajectory, index, length) for index, length in enumerate((8, 9, 10))]
    paths = [tmp_path / name for name in ("rollouts.parquet", "segments.parquet", "quarantine")]
    kept = keep_valid(rollouts, *paths, "run", 3, window=9)
    assert (kept.total, kept.accepted, kept.rejected) == (3, 2, {"within_window": 1})
    assert [t.id for t in read_trajectories(paths[0])] == ["p-0", "p-1"]
    assert [len(s.token_ids) for s in read_segments(paths[1])] == [8, 9]
    (row,) = Quarantine(paths[2]).rows("trajectories")
    assert (row["key"], row["rule"]) == ("p-2", "within_window")
    assert row["reason"] == "a segment has 10 tokens, the model's window 9"
    assert row["row"]["id"] == "p-2"
    assert keep_valid(rollouts, *paths, "run", 3).accepted == 3
