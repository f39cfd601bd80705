"""The Prefect tasks of the canary and of the drift checks, called as plain functions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_contracts.gates import Verdict
from data_contracts.records import Problem
from data_contracts.store import read_json
from models.chat import Chat
from models.release import Component, Manifest, Release
from tasks.canary.config import CanaryConfig
from tasks.canary.steps import canary
from tasks.drift.config import DriftConfig
from tasks.drift.episodes import read_ledger
from tasks.drift.folder import DriftFolder
from tasks.drift.steps import check_run
from tasks.drift.tables import reference_table
from tasks.paths import RunFolder
from tasks.rollout.sandbox import WarmPool


def release(version: int, folder: Path) -> Release:
    """A release that the scripted engine knows by its name."""
    part = Component(
        model="m", version=1, digest=f"digest-{version}", content="c", stored="referenced", source="", files={}
    )
    manifest = Manifest(
        name="agent",
        key=f"k{version}",
        run_id="run",
        created="2026-11-30T00:00:00+00:00",
        policy_version=f"policy-0000{version}",
        components={"base": part, "policy": part},
        datasets={},
        contract_versions={},
        recipe={},
        code_revision="c",
        evidence=(),
    )
    return Release(version, manifest, {"base": folder, "policy": folder})


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_the_canary_step_serves_two_releases_and_the_drift_step_reads_its_audit_log(
    scripted: Callable[..., Any],
    chat: Chat,
    problems: list[Problem],
    pools: tuple[WarmPool, WarmPool],
    make_trajectory: Callable[..., Any],
    tmp_path: Path,
) -> None:
    says = {"release-1": [call("submit")], "release-2": [call("edit", line=9, text="x"), call("submit")]}
    engine = scripted(lambda version, session, turn: says[version][turn])
    releases = release(1, tmp_path), release(2, tmp_path)
    folders = tmp_path / "canary", tmp_path / "audit"
    config = CanaryConfig(turn_tokens=200)
    report = canary.fn(engine, chat, releases, problems[:96], pools, config, folders)
    assert (report.champion, report.candidate, report.decision.action) == ("release-1", "release-2", "hold")
    assert report.sessions == 96

    reference = [make_trajectory(f"p{n}", outcome=True, sampled_tokens=5, prompt_ids=[1] * 30) for n in range(60)]
    run, folder = RunFolder(tmp_path), DriftFolder(tmp_path / "service")
    found = check_run.fn(run, 1, reference_table(reference), DriftConfig(minimum=20), folder)
    assert {row.check: row.verdict for row in found.rows}["success"] is Verdict.FAIL
    assert read_json(run.drift)["rows"][0]["check"] == "prompt_length"
    check_run.fn(run, 1, reference_table(reference), DriftConfig(minimum=20), folder)
    [window] = read_ledger(folder.ledger).windows
    assert (window.source, window.release, window.verdict) == (tmp_path.name, 1, Verdict.FAIL)
