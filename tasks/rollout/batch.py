"""Sampled rollouts meet their contract: what holds goes on, what does not is kept in quarantine.

rollouts -> trajectories + segments tables -> accepted rows -> Parquet
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from data_contracts.quarantine import Quarantine
from data_contracts.records import Record, Rollout
from data_contracts.store import frame_of, records_of, write_segments, write_trajectories
from data_contracts.validate import validate_rollouts


class Kept(Record):
    """How many rollouts their contract accepted, and how often each of its rules was broken."""

    total: int
    accepted: int
    rejected: dict[str, int]


def keep_valid(
    rollouts: Sequence[Rollout], trajectories: Path, segments: Path, quarantine: Path, run_id: str, iteration: int
) -> Kept:
    """Write the accepted rollouts to `trajectories` and `segments` (Parquet), each whole or not at all."""
    whole, parts = validate_rollouts(
        frame_of("trajectories", [rollout.trajectory for rollout in rollouts]),
        frame_of("segments", [segment for rollout in rollouts for segment in rollout.segments]),
    )
    for validation in (whole, parts):
        Quarantine(quarantine).add(validation.table, validation.rows_with_reasons(), run_id, iteration)
    write_segments(segments, records_of("segments", parts.accepted))
    write_trajectories(trajectories, records_of("trajectories", whole.accepted))
    rejected = Counter(whole.counts) + Counter(parts.counts)
    return Kept(total=len(rollouts), accepted=len(whole.accepted), rejected=dict(rejected))
