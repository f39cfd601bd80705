"""Judge what has come since the last time, once, and keep what follows from it.

new windows of the audit log + reference -> checks -> window's files -> one line of the ledger -> episode's files
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from data_contracts.gates import Verdict
from data_contracts.store import write_atomic, write_json
from models.mlflow_client import file_lock
from tasks.canary.audit import read_audit
from tasks.curriculum.live import live_candidates, write_candidates
from tasks.drift.checks import DriftReport, drift_checks
from tasks.drift.config import DriftConfig
from tasks.drift.episodes import Episode, Ledger, Window, append_entry, close_for, judge, read_ledger
from tasks.drift.folder import DriftFolder
from tasks.drift.named import unusual_sessions
from tasks.drift.report import write_page
from tasks.drift.tables import audit_table
from tasks.drift.windows import Cursor, cut_windows

GATEWAY = "gateway"
"""Source of the windows of the standing gateway."""


class Judged(NamedTuple):
    """A window, and all checks of it."""

    window: Window
    report: DriftReport


@contextmanager
def ledger_of(folder: DriftFolder, release: int, now: datetime) -> Iterator[Ledger]:
    """The ledger, held against other processes; an episode of a release that no longer serves is over."""
    with file_lock(folder.lock):
        ledger = read_ledger(folder.ledger)
        ended = close_for(ledger, release, now)
        if ended is not None:
            append_entry(folder.ledger, ended)
            ledger = read_ledger(folder.ledger)
        yield ledger


def watch_traffic(
    audit: Path, folder: DriftFolder, release: int, reference: pd.DataFrame, config: DriftConfig, now: datetime
) -> list[Judged]:
    """Judge the windows of a release's live traffic that are complete at `now` and were not judged before."""
    judged = []
    with ledger_of(folder, release, now) as ledger:
        for cut in cut_windows(audit, f"release-{release}", config, _cursor(ledger, release), now):
            table = cut.table()
            report = drift_checks(reference, table, config)
            name = f"{len(ledger.windows):05d}"
            window = _window(name, GATEWAY, release, report, len(table), (cut.start, cut.end), cut.last)
            ledger = _keep(folder, ledger, Judged(window, report), table, config)
            judged.append(Judged(window, report))
    return judged


def watch_run(
    folder: DriftFolder, run: str, release: int, table: pd.DataFrame, report: DriftReport, config: DriftConfig
) -> None:
    """Enter a run's live sessions as one window, however often they are looked at."""
    now = datetime.now(UTC)
    with ledger_of(folder, release, now) as ledger:
        if any(window.source == run for window in ledger.windows):
            return
        window = _window(run, run, release, report, len(table), (now, now), "")
        _keep(folder, ledger, Judged(window, report), table, config)


def write_evidence(
    audit_of: Callable[[str], Path],
    folder: DriftFolder,
    episode: Episode,
    reference: pd.DataFrame,
    config: DriftConfig,
) -> None:
    """An episode's candidates (opted-in sessions of its windows that lie where the drift is) and its page.

    `audit_of` gives the audit log of a window's source.
    """
    checks = [check for check in config.checks if check.name in episode.checks]
    found, tables = [], []
    for window in (w for w in read_ledger(folder.ledger).windows if w.id in episode.windows):
        tables.append(pd.read_parquet(folder.table(window.id)))
        rows = read_audit(audit_of(window.source), _days(window))
        said = audit_table(rows, release=f"release-{window.release}")
        inside = said[said["session"].isin(tables[-1]["session"])]
        found += live_candidates(rows, unusual_sessions(reference, inside, checks), config.candidates)
    write_candidates(folder.candidates(episode.id), found[: config.candidates])
    write_page(reference, pd.concat(tables, ignore_index=True), folder.page(episode.id))


def _cursor(ledger: Ledger, release: int) -> Cursor | None:
    seen = [window for window in ledger.windows if window.release == release and window.source == GATEWAY]
    return Cursor(seen[-1].end, seen[-1].last) if seen else None


def _keep(folder: DriftFolder, ledger: Ledger, judged: Judged, table: pd.DataFrame, config: DriftConfig) -> Ledger:
    """The window's files first, its line last; returns the ledger with it."""
    entry = judge(ledger, judged.window, config)
    write_json(folder.report(judged.window.id), judged.report)
    write_atomic(folder.table(judged.window.id), table.drop(columns="prompt").to_parquet(index=False))
    append_entry(folder.ledger, entry)
    return Ledger((*ledger.entries, entry))


def _window(
    name: str,
    source: str,
    release: int,
    report: DriftReport,
    sessions: int,
    times: tuple[datetime, datetime],
    last: str,
) -> Window:
    untold = tuple(row.check for row in report.rows if row.verdict is Verdict.INCONCLUSIVE)
    effects = {row.check: row.effect / row.limit for row in report.rows if row.effect is not None}
    return Window(
        id=name,
        source=source,
        release=release,
        start=times[0],
        end=times[1],
        last=last,
        sessions=sessions,
        verdict=report.verdict,
        drifted=report.drifted,
        untold=untold,
        effects=effects,
    )


def _days(window: Window) -> list[str] | None:
    """The days on which its sessions were served, one may have begun the day before; None, all, for a run's own log."""
    if window.source != GATEWAY:
        return None
    days = (window.end.date() - window.start.date()).days
    return [(window.start.date() + timedelta(days=day)).isoformat() for day in range(-1, days + 1)]
