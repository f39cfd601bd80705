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
from data_contracts.verdicts import Rejection

WITHIN_WINDOW = "within_window"


class Kept(Record):
    """How many rollouts their contract accepted, and how often each of its rules was broken."""

    total: int
    accepted: int
    rejected: dict[str, int]


def keep_valid(
    rollouts: Sequence[Rollout],
    trajectories: Path,
    segments: Path,
    quarantine: Path,
    run_id: str,
    iteration: int,
    window: int | None = None,
) -> Kept:
    """Write the accepted rollouts to `trajectories` and `segments` (Parquet), each whole or not at all.

    One with a segment of more tokens than the model's `window` can not be trained on, and is not accepted either.
    """
    fitting = [rollout for rollout in rollouts if window is None or _longest(rollout) <= window]
    too_long = [rollout for rollout in rollouts if window is not None and _longest(rollout) > window]
    whole, parts = validate_rollouts(
        frame_of("trajectories", [rollout.trajectory for rollout in fitting]),
        frame_of("segments", [segment for rollout in fitting for segment in rollout.segments]),
    )
    kept_aside = Quarantine(quarantine)
    kept_aside.add(
        whole.table, [(_beyond(r, window), r.trajectory.model_dump(mode="json")) for r in too_long], run_id, iteration
    )
    for validation in (whole, parts):
        kept_aside.add(validation.table, validation.rows_with_reasons(), run_id, iteration)
    write_segments(segments, records_of("segments", parts.accepted))
    write_trajectories(trajectories, records_of("trajectories", whole.accepted))
    rejected = Counter(whole.counts) + Counter(parts.counts) + Counter({WITHIN_WINDOW: len(too_long)})
    return Kept(total=len(rollouts), accepted=len(whole.accepted), rejected=dict(rejected))


def _longest(rollout: Rollout) -> int:
    return max((len(segment.token_ids) for segment in rollout.segments), default=0)


def _beyond(rollout: Rollout, window: int | None) -> Rejection:
    reason = f"a segment has {_longest(rollout)} tokens, the model's window {window}"
    return Rejection(None, rollout.trajectory.id, WITHIN_WINDOW, reason)
