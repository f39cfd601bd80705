"""The line that is shown while rollouts are made."""

from __future__ import annotations

from collections.abc import Callable

from data_contracts.records import Rollout, Trajectory
from tasks.rollout.meter import Meter


def test_the_line_counts_rollouts_tokens_and_endings(make_trajectory: Callable[..., Trajectory]) -> None:
    clock, running = iter([10.0, 12.0, 14.0, 15.0]), iter([5, 4, 3])
    meter = Meter(8, lambda: next(running), lambda: next(clock))
    ended = [("completed", 1000), ("out_of_turns", 2000), ("completed", 3000)]
    lines = [
        meter.add(Rollout(trajectory=make_trajectory("p", i, status=status, sampled_tokens=tokens), segments=()))
        for i, (status, tokens) in enumerate(ended)
    ]
    assert lines == [
        "1 of 8 rollouts, 5 in flight, 500 tokens/s: completed 1",
        "2 of 8 rollouts, 4 in flight, 750 tokens/s: completed 1, out_of_turns 1",
        "3 of 8 rollouts, 3 in flight, 1,200 tokens/s: completed 2, out_of_turns 1",
    ]
