"""The credit stage as a Prefect task."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from data_contracts.store import read_segments, read_trajectories, write_segments
from tasks.credit.assign import CreditReport, assign, credit_report
from tasks.credit.config import CreditConfig


@task(name="credit", cache_policy=NO_CACHE)
def assign_credit(
    trajectories: Path, segments: Path, batch: Path, config: CreditConfig, weights: dict[str, float]
) -> CreditReport:
    """Write the segments of verified trajectories with their advantages to `batch`."""
    rollouts = read_trajectories(trajectories)
    write_segments(batch, assign(rollouts, read_segments(segments), config, weights=weights))
    return credit_report(rollouts, config, weights=weights)
