from __future__ import annotations

from data_contracts.records import Segment
from data_contracts.store import read_segments, write_segments, write_trajectories
from tasks.credit.config import CreditConfig
from tasks.credit.steps import assign_credit


def test_the_step_writes_the_batch_and_reports(make_trajectory, tmp_path):
    rollouts = [make_trajectory(rollout=i, outcome=i == 0) for i in range(2)]
    segments = [
        Segment(
            trajectory_id=rollout.id,
            token_ids=[1, 2],
            loss_mask=[0, 1],
            rollout_logprobs=[0.0, -0.5],
            turn_index=[0, 0],
        )
        for rollout in rollouts
    ]
    write_trajectories(tmp_path / "trajectories.parquet", rollouts)
    write_segments(tmp_path / "segments.parquet", segments)
    paths = [tmp_path / f"{name}.parquet" for name in ("trajectories", "segments", "batch")]
    report = assign_credit.fn(*paths, CreditConfig(scale="none"), {"outcome": 1.0})
    assert [segment.advantages for segment in read_segments(paths[2])] == [[0, 0.5], [0, -0.5]]
    assert (report.groups, report.share_with_variance) == (1, 1.0)
