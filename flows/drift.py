"""Live sessions of the champion against the reference it was released with; drift that persists is an event.

audit log + reference of the release -> checks -> report, history -> event `ratchet.drift` -> a new post-training run
"""

from __future__ import annotations

import json
from pathlib import Path

from prefect import flow
from prefect.events import emit_event

from data_contracts.errors import UserError
from data_contracts.gates import Verdict
from data_contracts.store import append_jsonl, read_jsonl
from flows.recipe import Recipe
from flows.stage import at_work, clock, gate_rows, keep_gates, show_table
from models.release import Release
from tasks.drift.checks import DriftReport
from tasks.drift.steps import drift as check_window
from tasks.drift.steps import drift_persists
from tasks.paths import RunFolder
from tasks.workbench import Bench

EVENT = "ratchet.drift"


@flow(name="drift", flow_run_name="drift")
def drift(run: str | None = None, home: str = "runs") -> str:
    """Check the sessions that a run's gateway audited (default: the newest with any); returns the verdict."""
    folder = RunFolder(Path(run).resolve()) if run else newest_audited(Path(home))
    if folder is None:
        return str(Verdict.INCONCLUSIVE)  # nobody was served yet: no data is no drift, and no all-clear
    with at_work(str(folder.root)) as (bench, recipe):
        champion = bench.champion()
        if champion is None:
            raise UserError(f"{recipe.release.name!r} has no champion to check: run `ratchet run RECIPE` first.")
        with clock(bench.run, "drift"):
            reference, served = reference_of(champion, bench), f"release-{champion.version}"
            report = check_window(reference, bench.run.audit, served, recipe.drift, bench.run.drift)
        show_table("drift", gate_rows(report.gates), f"Sessions of release {champion.version} against its reference")
        keep_gates(bench.run, "drift", report.gates)
        _tell(bench, recipe, champion, report)
        return str(report.verdict)


def newest_audited(home: Path) -> RunFolder | None:
    """The run whose gateway wrote last; None when none has served live sessions."""
    audited = sorted(home.resolve().glob("*/audit"), key=lambda folder: folder.stat().st_mtime)
    return RunFolder(audited[-1].parent) if audited else None


def reference_of(champion: Release, bench: Bench) -> Path:
    """The evaluation that the champion was released with."""
    source = RunFolder(bench.run.home / champion.manifest.run_id)
    first = champion.policy_version == source.policy(0).name
    path = source.evaluation("before" if first else "after").reference
    if not path.is_file():
        raise UserError(f"the reference of release {champion.version} is gone: {path} does not exist.")
    return path


def _tell(bench: Bench, recipe: Recipe, champion: Release, report: DriftReport) -> None:
    """Note the verdict in the release's history; drift in enough of the last windows becomes an event."""
    history = bench.run.home / "drift" / f"{recipe.release.name}-{champion.version}.jsonl"
    seen = [line for line in read_jsonl(history).rows if line["run"] != bench.run.id]
    if len(seen) == len(read_jsonl(history).rows):  # one window a run, however often it is looked at
        append_jsonl(history, json.dumps({"run": bench.run.id, "verdict": str(report.verdict)}))
    verdicts = [Verdict(line["verdict"]) for line in read_jsonl(history).rows]
    if drift_persists(verdicts, recipe.drift):
        emit_event(
            event=EVENT,
            resource={"prefect.resource.id": f"ratchet.release.{recipe.release.name}.{champion.version}"},
            payload={"run": bench.run.id, "verdicts": [str(verdict) for verdict in verdicts]},
        )
