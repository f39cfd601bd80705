"""The drift stage as Prefect tasks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from prefect import task
from prefect.cache_policies import NO_CACHE

from data_contracts.store import read_json, read_segments, read_trajectories, write_json
from tasks.canary.audit import read_audit
from tasks.drift.checks import DriftReport, drift_checks
from tasks.drift.config import DriftConfig
from tasks.drift.episodes import Episode, read_ledger
from tasks.drift.folder import DriftFolder
from tasks.drift.predictions import predict_outcomes
from tasks.drift.report import draw_effects
from tasks.drift.tables import Prompt, audit_table, reference_table
from tasks.drift.telling import Server, is_told, tell
from tasks.drift.watch import Judged, watch_run, watch_traffic, write_evidence
from tasks.paths import RunFolder

if TYPE_CHECKING:
    import torch

SHOWN = 60
"""Windows in the picture."""


@task(name="reference", cache_policy=NO_CACHE, persist_result=False)
def load_reference(trajectories: Path, prompt: Prompt, predicted: Path) -> pd.DataFrame:
    """The pinned evaluation (Parquet) as a table of sessions, with predictions (JSON) where they were made."""
    known = read_json(predicted) if predicted.exists() else {}
    return reference_table(read_trajectories(trajectories), prompt, known)


@task(name="predictions of the reference", cache_policy=NO_CACHE, persist_result=False)
def predict_reference(probe: Path, model: torch.nn.Module, reference: Path, segments: Path, out: Path) -> None:
    """Have the release's reward model say what it thinks of the reference, once."""
    if not out.exists():
        write_json(out, predict_outcomes(probe, model, read_trajectories(reference), read_segments(segments)))


@task(name="check a run's sessions", cache_policy=NO_CACHE, persist_result=False)
def check_run(
    run: RunFolder, release: int, reference: pd.DataFrame, config: DriftConfig, folder: DriftFolder
) -> DriftReport:
    """The sessions that a run's own gateway audited, as one window; the report is kept with the run too."""
    table = audit_table(read_audit(run.audit), release=f"release-{release}")
    report = drift_checks(reference, table, config)
    write_json(run.drift, report)
    watch_run(folder, run.id, release, table, report, config)
    return report


@task(name="check live traffic", cache_policy=NO_CACHE, persist_result=False)
def check_traffic(
    audit: Path, release: int, reference: pd.DataFrame, config: DriftConfig, folder: DriftFolder
) -> list[Judged]:
    """The windows that the standing gateway's audit log holds since the last time."""
    return watch_traffic(audit, folder, release, reference, config, datetime.now(UTC))


@task(name="draw effects", cache_policy=NO_CACHE, persist_result=False)
def draw(folder: DriftFolder) -> None:
    """The last windows' effects as a picture."""
    draw_effects(read_ledger(folder.ledger).windows[-SHOWN:], folder.plot)


@task(name="tell of an episode", cache_policy=NO_CACHE, persist_result=False)
def tell_episode(
    folder: DriftFolder,
    audit_of: Callable[[str], Path],
    reference: pd.DataFrame,
    config: DriftConfig,
    server: Server,
) -> Episode | None:
    """Have the server know of the open episode, once; its evidence is there before."""
    episode = read_ledger(folder.ledger).open
    if episode is None or is_told(folder, episode):
        return None
    write_evidence(audit_of, folder, episode, reference, config)
    return episode if tell(folder, episode, server) else None
