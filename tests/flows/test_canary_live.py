"""The live canary as a Prefect flow: its artifact, the form that approves it, the limit on promoters, its commands."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.commands.canary import app
from flows.recipe import Recipe
from flows.services import prefect_api
from models.registry import Registry
from models.release import Bundle
from models.trial import Trial
from tasks.canary.audit import AuditLog, AuditRow
from tasks.canary.standing_status import StandingStatus, all_statuses
from tasks.paths import ServiceFolder

RECIPE = Recipe.model_validate(
    {
        "release": {"name": "agent"},
        "canary": {
            "traffic": "live",
            "approval": "before_promotion",
            "look_seconds": 0.5,
            "stages": [{"share": 0.5, "sessions": 20}, {"share": 1.0, "sessions": 10}],
            "metrics": [{"name": "success", "better": "higher", "criticality": "promotes", "scale": 1.0}],
        },
    }
)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Two releases of an agent, the first one champion."""
    registry = Registry(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "mlartifacts", "agent", home=tmp_path)
    for mark in "ab":
        for role in ("base", "policy"):
            (tmp_path / "made" / mark / role).mkdir(parents=True)
            (tmp_path / "made" / mark / role / "model.safetensors").write_text(f"{mark}-{role}")
        registry.publish(
            Bundle(
                run_id=f"run-{mark}",
                base_path=tmp_path / "made" / mark / "base",
                base_digest="base",
                policy_path=tmp_path / "made" / mark / "policy",
                policy_version="policy-00001",
                policy_digest=mark,
                datasets={},
                contract_versions={},
                recipe={},
                code_revision="c",
            )
        )
    registry.promote(1, who="test", why="first")
    return registry


def sessions(log: AuditLog, trial: Trial) -> None:
    """A stage's sessions as the gateway would have written them; the candidate solves nearly all."""
    chances = {("champion", 1): 0.4, ("candidate", 2): 0.95}
    for ((arm, version), chance), number in itertools.product(chances.items(), range(40)):
        if arm == "champion" and trial.share == 1:
            continue
        common: dict[str, Any] = {"session": f"{trial.stage}-{arm}-{number}", "release": f"release-{version}"}
        common |= {"arm": arm, "stage": trial.stage, "digest": "d", "turn": 0}
        log.append(AuditRow(kind="turn", latency=0.1, completion_tokens=5, prompt_tokens=9, **common))
        log.append(AuditRow(kind="outcome", outcome=number < 40 * chance, **common))


def world(registry: Registry, folder: ServiceFolder, asked: Callable[[StandingStatus], None]) -> threading.Thread:
    """Users and a person, beside the canary: sessions for each stage, and an answer once one is waited for."""

    def live() -> None:
        fed: set[int] = set()
        with AuditLog(folder.audit) as log:
            while True:
                statuses = all_statuses(folder)
                if statuses and statuses[-1].ending is not None:
                    return
                serving = registry.serving()
                if serving and serving.trial and serving.trial.stage not in fed:
                    fed.add(serving.trial.stage)
                    sessions(log, serving.trial)
                if statuses and statuses[-1].waits_for == "approval":
                    asked(statuses[-1])
                time.sleep(0.2)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    return thread


def test_a_person_approves_by_the_form_and_the_canary_is_seen(registry: Registry, tmp_path: Path) -> None:
    folder = ServiceFolder(tmp_path, "agent")
    with prefect_api(tmp_path):
        from prefect import get_client
        from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, FlowRunFilter, FlowRunFilterName
        from prefect.client.schemas.sorting import ArtifactSort, FlowRunSort
        from prefect.flow_runs import resume_flow_run

        from flows.canary import canary_live

        paused = FlowRunFilter(name=FlowRunFilterName(any_=["approve release-2-1?"]))

        def fill_in(status: StandingStatus) -> None:
            with get_client(sync_client=True) as client:
                runs = client.read_flow_runs(flow_run_filter=paused, sort=FlowRunSort.ID_DESC, limit=9)
            for run in runs:
                if run.state is not None and run.state.is_paused():
                    time.sleep(3.0)  # as a person; what the form asks is saved just after the pause
                    resume_flow_run(run.id, run_input={"approve": True, "why": "looks good"})

        thread = world(registry, folder, fill_in)
        canary_live(2, RECIPE, str(tmp_path))
        thread.join(timeout=30)
        with get_client(sync_client=True) as client:
            key = ArtifactFilter(key=ArtifactFilterKey(any_=["canary-release-2-1"]))
            artifacts = client.read_artifacts(artifact_filter=key, sort=ArtifactSort.ID_DESC, limit=9, offset=0)
            [asking] = client.read_flow_runs(flow_run_filter=paused, sort=FlowRunSort.ID_DESC, limit=9)
    serving = registry.serving()
    assert serving is not None and (serving.champion.version, serving.trial) == (2, None)
    assert len(artifacts) == 1 and "promoted" in str(artifacts[0].description)
    assert asking.state is not None and asking.state.is_completed()
    told = CliRunner().invoke(app, ["status", "--home", str(tmp_path)])
    assert told.exit_code == 0 and "promoted" in told.output and "success" in told.output


def test_commands_stop_answer_and_refuse(registry: Registry, tmp_path: Path) -> None:
    from tasks.canary.standing import Seat, begin

    folder = ServiceFolder(tmp_path, "agent")
    begin(Seat(registry, folder, "test"), 2, RECIPE.canary)
    run = CliRunner()
    assert run.invoke(app, ["approve", "--home", str(tmp_path), "--why", "fine"]).exit_code == 0
    assert '"approved": true' in (folder.canary("release-2-1") / "answer.json").read_text()
    assert run.invoke(app, ["reject", "--home", str(tmp_path)]).exit_code == 0
    assert '"approved": false' in (folder.canary("release-2-1") / "answer.json").read_text()
    assert run.invoke(app, ["stop", "--home", str(tmp_path), "--why", "too early"]).exit_code == 0
    assert (registry.serving() or pytest.fail("no champion")).trial is None
    shown = StandingStatus.model_validate_json(run.invoke(app, ["status", "--json", "--home", str(tmp_path)]).output)
    assert (shown.ending, shown.why) == ("rolled_back", "too early")
    refused = run.invoke(app, ["approve", "--home", str(tmp_path)])
    assert "no canary of 'agent' goes on" in str(refused.exception)
    assert "begins one" in str(run.invoke(app, ["status", "--home", str(tmp_path / "empty")]).exception)
