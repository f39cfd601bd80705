"""What Prometheus reads of the pipeline: python -m flows.exporter HOME PORT

run.json files + release journals + canaries' status.json + drift ledgers -> GET /metrics

Everything is read anew at each scrape, so that the process has no state and may die at any time. What users are
served is the gateway's to tell (tasks/canary).
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from data_contracts.gates import Verdict
from flows.runs import all_runs
from models.registry_journal import Journal, champions
from tasks.canary.standing_status import StandingStatus, all_statuses
from tasks.drift.episodes import read_ledger
from tasks.drift.folder import DriftFolder
from tasks.paths import ServiceFolder
from tasks.supervision import HOST

STATES = ("running", "finished", "held", "failed", "cancelled", "interrupted")


class Pipeline(Collector):
    """The facts of a home, as metrics; the names are those that alerts and dashboards use."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def collect(self) -> Iterator[Metric]:
        yield from self._runs()
        yield from self._champions()
        yield from self._canaries()
        yield from self._drift()

    def describe(self) -> list[Metric]:
        """Names without a scrape: what a registry checks for duplicates."""
        return []

    def _runs(self) -> Iterator[Metric]:
        runs = all_runs(self._home)
        by_state = Counter(str(run.get("state")) for run in runs)
        count = GaugeMetricFamily("ratchet_runs", "Post-training runs, by state.", labels=["state"])
        for state in STATES:
            count.add_metric([state], by_state[state])
        changed = GaugeMetricFamily("ratchet_run_changed_timestamp_seconds", "When a run's state changed last.")
        if runs:
            changed.add_metric([], max(_seconds(str(run["changed"])) for run in runs))
        yield from (count, changed)

    def _champions(self) -> Iterator[Metric]:
        version = GaugeMetricFamily("ratchet_champion_version", "The release that serves.", labels=["agent"])
        since = GaugeMetricFamily("ratchet_champion_since_timestamp_seconds", "Since when.", labels=["agent"])
        pending = GaugeMetricFamily("ratchet_moves_unfinished", "Moves that a kill left halfway.", labels=["agent"])
        for file in sorted(self._home.glob("registry/*.jsonl")):
            moves = Journal(file).moves()
            done = [move for move in moves if move.state == "done" and move.kind != "trial"]
            if (stack := champions(moves)) and stack[-1] is not None:
                version.add_metric([file.stem], stack[-1])
                since.add_metric([file.stem], _seconds(done[-1].at))
            pending.add_metric([file.stem], sum(move.state in ("intent", "applied") for move in moves))
        yield from (version, since, pending)

    def _canaries(self) -> Iterator[Metric]:
        going = GaugeMetricFamily("ratchet_canary_under_way", "1 while a candidate is on trial.", labels=["agent"])
        share = GaugeMetricFamily("ratchet_canary_share", "Of the sessions, the candidate's.", labels=["agent"])
        looked = GaugeMetricFamily("ratchet_canary_looked_timestamp_seconds", "The last look.", labels=["agent"])
        waits = GaugeMetricFamily("ratchet_canary_waits_for_approval", "1 while a person is asked.", labels=["agent"])
        for folder in self._services():
            latest = next(reversed(all_statuses(folder)), None)
            if latest is not None:
                going.add_metric([folder.name], latest.ending is None)
                share.add_metric([folder.name], latest.share if latest.ending is None else 0.0)
                looked.add_metric([folder.name], _looked(latest))
                waits.add_metric([folder.name], latest.ending is None and latest.waits_for == "approval")
        yield from (going, share, looked, waits)

    def _drift(self) -> Iterator[Metric]:
        count = GaugeMetricFamily("ratchet_drift_windows", "Windows, by verdict.", labels=["agent", "verdict"])
        last = GaugeMetricFamily("ratchet_drift_window_timestamp_seconds", "End of the last one.", labels=["agent"])
        episode = GaugeMetricFamily("ratchet_drift_episode_open", "1 while drift persists.", labels=["agent"])
        for folder in self._services():
            ledger = read_ledger(DriftFolder(folder.drift).ledger)
            verdicts = Counter(window.verdict for window in ledger.windows)
            for verdict in Verdict:
                count.add_metric([folder.name, str(verdict)], verdicts[verdict])
            if ledger.windows:
                last.add_metric([folder.name], ledger.windows[-1].end.timestamp())
            episode.add_metric([folder.name], ledger.open is not None)
        yield from (count, last, episode)

    def _services(self) -> list[ServiceFolder]:
        return [ServiceFolder(self._home, folder.name) for folder in sorted(self._home.glob("service/*"))]


def _looked(status: StandingStatus) -> float:
    return _seconds(status.looked or status.began)


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def registry_of(home: Path) -> CollectorRegistry:
    """The metrics of a home."""
    registry = CollectorRegistry()
    registry.register(Pipeline(home))
    return registry


def main(home: str, port: str, host: str = HOST) -> None:
    """Answer until the process is ended."""
    start_http_server(int(port), host, registry_of(Path(home).resolve()))
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
