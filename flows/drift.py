"""Live sessions of the champion against the reference it was released with; drift that persists is told once.

audit log + reference of the release -> windows -> checks -> ledger -> event `ratchet.drift.detected` -> a new run
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_link_artifact
from prefect.events import DeploymentEventTrigger

from data_contracts.errors import UserError
from data_contracts.gates import Verdict
from flows.drift_event import EVENT, PrefectServer, resource_of
from flows.recipe import Recipe
from flows.stage import at_work, clock, gate_rows, keep_gates, show_picture, show_table
from models.release import Release
from tasks.drift.episodes import Ledger, read_ledger
from tasks.drift.folder import DriftFolder
from tasks.drift.prompts import Asked, load_chat
from tasks.drift.steps import check_run, check_traffic, draw, load_reference, predict_reference, tell_episode
from tasks.drift.telling import is_told
from tasks.drift.watch import GATEWAY
from tasks.paths import RunFolder, ServiceFolder, Side
from tasks.release.opening import registry_of


@flow(name="drift", flow_run_name="drift")
def drift(run: str | None = None, home: str = "runs", recipe: Recipe | None = None) -> str:
    """Check what was served since the last time, and tell of drift that persists; returns the last verdict.

    With `run`: the sessions of that run's own gateway, and nobody is told. Else the standing gateway's traffic of
    the recipe's agent; where none stands, the run whose gateway wrote last.
    """
    if run is not None:
        return _check_run(RunFolder(Path(run).resolve()))
    root = Path(home).resolve()
    if recipe is not None and ServiceFolder(root, recipe.release.name).audit.is_dir():
        return _check_traffic(root, recipe)
    newest = newest_audited(root)
    if newest is None:
        return str(Verdict.INCONCLUSIVE)  # nobody was served yet: no data is no drift, and no all-clear
    verdict = _check_run(newest)
    _tell(root, recipe or Recipe.model_validate_json(newest.recipe.read_text()))
    return verdict


def drift_trigger(recipe: Recipe, home: Path) -> DeploymentEventTrigger:
    """What has a deployment of `post_train` run once an episode: from the champion, with the reason in its state."""
    again = recipe.model_copy(update={"policy": recipe.policy.model_copy(update={"start": "champion"})})
    return DeploymentEventTrigger(
        name="drift starts a run",
        expect={EVENT},
        match={"prefect.resource.id": resource_of(recipe.release.name, "*")},
        parameters={
            "recipe": again.model_dump(mode="json"),
            "home": str(home),
            "because": "{{ event.payload.reason }}",
        },
    )


def newest_audited(home: Path) -> RunFolder | None:
    """The run whose gateway wrote last; None when none has served live sessions."""
    audited = sorted(home.resolve().glob("*/audit"), key=lambda folder: folder.stat().st_mtime)
    return RunFolder(audited[-1].parent) if audited else None


def reference_of(champion: Release, home: Path) -> Path:
    """What live sessions are compared with: the release keeps it; for an older one its run has to."""
    path = champion.reference_path or evaluation_of(champion, home).reference
    if not path.is_file():
        raise UserError(f"the reference of release {champion.version} is gone: {path} does not exist.")
    return path


def evaluation_of(champion: Release, home: Path) -> Side:
    """The evaluation that the champion was released with, in the folder of its run."""
    source = RunFolder(home / champion.manifest.run_id)
    return source.evaluation("before" if champion.policy_version == source.policy(0).name else "after")


def window_rows(ledger: Ledger) -> list[dict[str, Any]]:
    """The ledger as a person reads it: one row a window, the newest first."""
    rows = []
    for entry in reversed(ledger.entries):
        marks = [f"opened {entry.opened.id}"] if entry.opened else []
        marks += [f"closed {entry.closed.episode}: {entry.closed.why}"] if entry.closed else []
        row = {"window": "", "release": "", "until": "", "sessions": "", "verdict": "", "drifted": "", "untold": ""}
        if window := entry.window:
            facts = (window.id, window.release, f"{window.end:%Y-%m-%d %H:%M}", window.sessions, window.verdict)
            row = dict(zip(row, [*map(str, facts), ", ".join(window.drifted), ", ".join(window.untold)], strict=True))
        rows.append(row | {"episode": "; ".join(marks)})
    return rows


def _check_run(folder: RunFolder) -> str:
    """One window: all that the run's gateway served of the champion."""
    with at_work(str(folder.root)) as (bench, recipe):
        champion = bench.champion()
        if champion is None:
            raise UserError(f"{recipe.release.name!r} has no champion to check: run `ratchet run RECIPE` first.")
        with clock(folder, "drift"):
            kept, path = _kept(folder.home, recipe), reference_of(champion, folder.home)
            segments = evaluation_of(champion, folder.home).segments
            if champion.reward_path is not None and segments.exists():  # here, where the base is in memory
                predict_reference(
                    champion.reward_path, bench.base.model, path, segments, kept.predicted(champion.version)
                )
            reference = load_reference(path, Asked(bench.chat), kept.predicted(champion.version))
            report = check_run(folder, champion.version, reference, recipe.drift, kept)
        show_table("drift", gate_rows(report.gates), f"Sessions of release {champion.version} against its reference")
        keep_gates(folder, "drift", report.gates)
        return str(report.verdict)


def _check_traffic(home: Path, recipe: Recipe) -> str:
    """The windows that are new, then the open episode's event."""
    champion, folder, audit = _champion(home, recipe), _kept(home, recipe), _audit(home, recipe, GATEWAY)
    reference = _reference(home, champion, folder)
    judged = check_traffic(audit, champion.version, reference, recipe.drift, folder)
    if judged:
        last = judged[-1]
        described = f"Window {last.window.id} of release {champion.version} against its reference"
        show_table("drift", gate_rows(last.report.gates), described)
        show_table("drift-windows", window_rows(read_ledger(folder.ledger)), "Windows of live sessions, newest first")
        draw(folder)
        png = base64.b64encode(folder.plot.read_bytes()).decode()
        show_picture("drift-effects", f"data:image/png;base64,{png}", "Effect over its limit, by check")
    _tell(home, recipe)
    return str(judged[-1].window.verdict if judged else Verdict.INCONCLUSIVE)


def _tell(home: Path, recipe: Recipe) -> None:
    """The open episode's event, if it was not sent; its page is linked."""
    folder = _kept(home, recipe)
    open_one = read_ledger(folder.ledger).open
    if open_one is None or is_told(folder, open_one):
        return
    reference = _reference(home, _champion(home, recipe), folder)
    server = PrefectServer(recipe.release.name, folder)
    if tell_episode(folder, lambda source: _audit(home, recipe, source), reference, recipe.drift, server):
        page = folder.page(open_one.id)
        create_link_artifact(page.as_uri(), link_text=str(page), key="drift-report", description=open_one.reason)


def _champion(home: Path, recipe: Recipe) -> Release:
    name = recipe.release.name
    champion = registry_of(home, name).champion()
    if champion is None:
        raise UserError(f"{name!r} has no champion to check: run `ratchet run RECIPE` first.")
    return champion


def _reference(home: Path, champion: Release, folder: DriftFolder) -> Any:
    prompt = Asked(load_chat(champion.base_path))
    return load_reference(reference_of(champion, home), prompt, folder.predicted(champion.version))


def _kept(home: Path, recipe: Recipe) -> DriftFolder:
    return DriftFolder(ServiceFolder(home, recipe.release.name).drift)


def _audit(home: Path, recipe: Recipe, source: str) -> Path:
    """The audit log of a window's source: the standing gateway's, or a run's own."""
    return ServiceFolder(home, recipe.release.name).audit if source == GATEWAY else RunFolder(home / source).audit
