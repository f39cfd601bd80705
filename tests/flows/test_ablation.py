"""`ratchet ablate credit` on the smallest recipe: arms share their start, spend their tokens, and are not run twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from data_contracts.store import read_json, read_trajectories
from flows.values import NO_ROLLOUTS
from tasks.paths import RunFolder

ROOT = Path(__file__).parents[2]
TOKENS = 600
"""Two iterations of the smoke recipe."""


def ablate(home: Path, methods: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.cli", "ablate", "credit", str(ROOT / "infra" / "recipes" / "smoke.toml")]
    command += ["--methods", methods, "--seeds", "1", "--tokens", str(TOKENS), "--points", "1", "--home", str(home)]
    command += ["--set", "evaluation.problems={ short = 4 }", "--set", "credit.td_refit=1"]
    command += ["--set", "reward.probe.value_ece_limit=1.0", "--set", "reward.probe.value_auroc_limit=0.0"]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=500)


def test_a_method_that_is_none_is_refused(tmp_path: Path) -> None:
    done = ablate(tmp_path, "outcome,luck")
    assert done.returncode == 2
    assert "luck: no way of credit to compare: write some of none, outcome, process, td, branch." in done.stderr


@pytest.mark.slow
def test_arms_differ_in_their_credit_alone(tmp_path: Path) -> None:
    first = ablate(tmp_path, "process,td")
    assert first.returncode == 0, first.stderr
    assert f"td credit: {NO_ROLLOUTS}" in " ".join(first.stderr.split()), "a fallback is announced"
    (root,) = (tmp_path / "ablations").iterdir()
    process, td = RunFolder(root / "process-0"), RunFolder(root / "td-0")
    assert (root / "ablation.html").read_text().count("<svg") == 2
    assert {(row["arm"], row["share"], row["horizon"]) for row in read_json(root / "ablation.json")} == {
        (arm, share, horizon) for arm in ("process", "td") for share in (0.0, 1.0) for horizon in ("short", "all")
    }

    assert td.train.read_bytes() == process.train.read_bytes()
    assert read_trajectories(td.evaluation("at-0").reference) == read_trajectories(process.evaluation("at-0").reference)
    assert [read_json(td.iteration(n).credit)["method"] for n in (0, 1)] == ["outcome", "td"]
    assert read_json(td.iteration(0).credit)["note"] == NO_ROLLOUTS
    turns = [turn for t in read_trajectories(process.iteration(0).trajectories) for turn in t.turns]
    assert all(turn.progress is not None for turn in turns)
    assert any(turn.progress for turn in turns), "some session moved the hidden checks"

    made = [file.stat().st_mtime_ns for file in sorted(root.rglob("metrics.json"))]
    assert ablate(tmp_path, "process,td").returncode == 0
    assert [file.stat().st_mtime_ns for file in sorted(root.rglob("metrics.json"))] == made, "what is done stays"
