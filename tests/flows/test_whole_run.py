"""The whole loop by its command, on the smallest recipe: to the end, again, and through kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from data_contracts.store import read_json, read_trajectories
from tasks.paths import Iteration, RunFolder

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "infra" / "recipes" / "smoke.toml"
COMMAND = [sys.executable, "-m", "flows.cli", "run", str(RECIPE), "--home"]
ITERATIONS, PROBLEMS, ROLLOUTS, HELDOUT = 3, 6, 4, 28
"""What smoke.toml says."""

Alive = Callable[[str], list[str]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def marked() -> dict[str, str]:
    """An environment by which every process that a run starts can be found again."""
    return {**os.environ, "RATCHET_TEST_MARK": uuid.uuid4().hex}


def until(holds: Callable[[], bool], process: subprocess.Popen[str] | None = None, seconds: float = 900.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert process is None or process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)


def run_of(home: Path) -> RunFolder:
    (recipe,) = home.glob("smoke-*/recipe.json")
    return RunFolder(recipe.parent)


def began(home: Path) -> bool:
    return bool(list(home.glob("smoke-*/recipe.json")))


def in_rollouts(home: Path) -> bool:
    journal = home.glob("smoke-*/iterations/00000/journal.jsonl")
    return any(path.read_bytes().count(b"\n") >= 5 for path in journal)


def in_training(home: Path) -> bool:
    if not began(home):
        return False
    here = run_of(home).iteration(1)
    return here.batch.exists() and not here.metrics.exists()


def in_release(home: Path) -> bool:
    return began(home) and (run_of(home).gates / "release.json").exists() and not run_of(home).release.exists()


def metrics_of(iteration: Iteration) -> dict[str, float]:
    """What was measured of an iteration, but for how long things took and the largest mismatch.

    Sessions that a kill cut off are sampled again in other batches, whose sums round otherwise: of that the largest
    mismatch is the measure itself, about 1e-5 nats.
    """
    left_out = ("seconds", "mismatch.max_abs_diff")
    found = read_json(iteration.metrics)
    return {name: value for name, value in found.items() if not any(word in name for word in left_out)}


def check_product(run: RunFolder) -> dict[str, Any]:
    """Each rollout once, each iteration once, one release beside the first champion; returns the summary."""
    summary: dict[str, Any] = json.loads(run.summary.read_text())
    for number in range(ITERATIONS):
        rollouts = read_trajectories(run.iteration(number).trajectories)
        assert len({t.id for t in rollouts}) == len(rollouts) == PROBLEMS * ROLLOUTS
        assert {t.policy_version for t in rollouts} == {run.policy(number).name}
    assert summary["iterations"] == ITERATIONS
    assert summary["rollouts"]["training"] == ITERATIONS * PROBLEMS * ROLLOUTS
    assert summary["rollouts"]["evaluation"] == 2 * 2 * HELDOUT
    assert summary["release"]["version"] == 2
    assert summary["release"]["compared_with"] == 1
    return summary


class Done(NamedTuple):
    """A run that went to its end undisturbed."""

    home: Path
    run: RunFolder
    process: subprocess.CompletedProcess[str]
    mark: str


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Done:
    home, environment = tmp_path_factory.mktemp("whole"), marked()
    done = subprocess.run([*COMMAND, str(home)], cwd=ROOT, env=environment, capture_output=True, text=True)
    return Done(home, run_of(home), done, environment["RATCHET_TEST_MARK"])


def test_to_the_end(whole: Done, alive: Alive) -> None:
    assert whole.process.returncode == 0, whole.process.stderr[-3000:]
    summary = check_product(whole.run)
    assert summary["release"]["promoted"]
    assert {gate["verdict"] for gate in summary["gates"] if gate["name"] == "rollout mismatch"} == {"PASS"}
    assert "verified success on held-out problems" in whole.process.stdout
    assert whole.run.report.stat().st_size > 20_000
    assert alive(whole.mark) == []


def test_the_same_command_again_does_nothing_anew(whole: Done) -> None:
    written = {path: path.stat().st_mtime_ns for path in whole.run.root.rglob("*") if path.is_file()}
    again = subprocess.run([*COMMAND, str(whole.home)], cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0
    assert "--fresh starts another" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in whole.run.root.rglob("*") if path.is_file()} == written


def test_status_tells_the_champion_and_the_runs(whole: Done) -> None:
    status = [sys.executable, "-m", "flows.cli", "status", "--json", "--home", str(whole.home)]
    found = json.loads(subprocess.run(status, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    champion = found["champions"]["smoke-agent"]
    assert (champion["version"], champion["policy"], champion["run"]) == (2, "policy-00003", whole.run.id)
    assert set(champion["components"]) == {"base", "policy", "reward"}
    assert [state["state"] for state in found["runs"]] == ["finished"]


def test_kill_9_in_rollouts_in_training_and_in_the_release_converges(whole: Done, alive: Alive, tmp_path: Path) -> None:
    kept: dict[Path, int] = {}
    for moment in (in_rollouts, in_training, in_release):
        environment = marked()
        with (tmp_path / "log").open("a") as log:
            process = subprocess.Popen(
                [*COMMAND, str(tmp_path / "home")], cwd=ROOT, env=environment, stdout=log, stderr=log, text=True
            )
        until(lambda moment=moment: moment(tmp_path / "home"), process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda mark=environment["RATCHET_TEST_MARK"]: alive(mark) == [], seconds=30)
        assert {path: path.stat().st_mtime_ns for path in kept} == kept, "something done was done again"
        kept |= {p: p.stat().st_mtime_ns for p in run_of(tmp_path / "home").root.glob("iterations/*/metrics.json")}
    done = subprocess.run([*COMMAND, str(tmp_path / "home")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "something done was done again"
    run = run_of(tmp_path / "home")
    assert check_product(run)["release"]["promoted"]
    for number in range(ITERATIONS):
        here, there = run.iteration(number), whole.run.iteration(number)
        assert read_json(here.selection) == read_json(there.selection)
        assert metrics_of(here) == pytest.approx(metrics_of(there), abs=1e-6), "one seed, and yet other metrics"
