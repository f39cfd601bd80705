"""The drift stage as Prefect tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from data_contracts.gates import Verdict
from data_contracts.records import Trajectory
from data_contracts.store import read_trajectories, write_json
from tasks.canary.audit import read_audit
from tasks.drift.checks import DriftReport, drift_checks, persistent
from tasks.drift.config import DriftConfig
from tasks.drift.tables import audit_table, reference_table


@task(name="drift", cache_policy=NO_CACHE, persist_result=False)
def drift(reference: Path, audit: Path, release: str, config: DriftConfig, out: Path) -> DriftReport:
    """The audited sessions of a release against its evaluation's trajectories (Parquet); writes the report to `out`."""
    trajectories: Sequence[Trajectory] = read_trajectories(reference)
    window = audit_table(read_audit(audit), release=release)
    report = drift_checks(reference_table(trajectories), window, config)
    write_json(out, report)
    return report


@task(name="drift persists", cache_policy=NO_CACHE, persist_result=False)
def drift_persists(history: Sequence[Verdict], config: DriftConfig) -> bool:
    """Whether enough of the last windows drifted to start a new run."""
    return persistent(history, k=config.drifted, n=config.windows)
