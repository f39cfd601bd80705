"""The whole loop by its command, on the smallest recipe: to the end, again, through kill -9 and through a cancel."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx
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


def in_later_rollouts(home: Path) -> bool:
    return began(home) and run_of(home).iteration(1).journal.exists()


def in_training(home: Path) -> bool:
    if not began(home):
        return False
    here = run_of(home).iteration(1)
    return here.batch.exists() and not here.metrics.exists()


def in_release(home: Path) -> bool:
    return began(home) and (run_of(home).gates / "release.json").exists() and not run_of(home).release.exists()


def metrics_of(iteration: Iteration) -> dict[str, float]:
    """What was measured of an iteration, but for how long things took, the largest mismatch and its growth.

    Sessions that a kill cut off are sampled again in other batches, whose sums round otherwise: of that the largest
    mismatch is the measure itself, about 1e-5 nats.
    """
    left_out = ("seconds", "mismatch.max_", "mismatch.growth")
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


def kill(process: subprocess.Popen[str], home: Path, log: Path) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def cancel(process: subprocess.Popen[str], home: Path, log: Path) -> None:
    """What the Prefect UI sends when a flow run is cancelled; the run ends and says so, here and there."""
    (url,) = re.findall(r"Prefect UI: (\S+)", log.read_text())
    newest = {"sort": "START_TIME_DESC", "limit": 1, "flow_runs": {"parent_task_run_id": {"is_null_": True}}}
    with httpx.Client(base_url=f"{url}/api", trust_env=False, timeout=60) as api:
        (flow_run,) = api.post("/flow_runs/filter", json=newest).json()
        assert flow_run["state_type"] == "RUNNING"
        assert flow_run["deployment_id"], "the UI offers no Cancel for a run without a deployment"
        state = {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": True}
        assert api.post(f"/flow_runs/{flow_run['id']}/set_state", json=state).status_code == 201
    assert process.wait(300) == 4
    said = log.read_text().splitlines()[-1]
    assert said == f"ratchet: {run_of(home).id}: cancelled in the Prefect UI; the same command goes on with it."
    written = read_json(run_of(home).state)
    assert (written["state"], written["why"]) == ("cancelled", "cancelled in the Prefect UI")
    with closing(sqlite3.connect(home / "prefect.db")) as database:
        latest = "select state_type from flow_run where parent_task_run_id is null order by start_time desc limit 1"
        assert database.execute(latest).fetchone() == ("CANCELLED",)


def finished_work(run: RunFolder) -> dict[Path, list[str]]:
    """What nothing may do again: metrics, by when they were written, and the rollouts of every journal."""
    metrics = {path: [str(path.stat().st_mtime_ns)] for path in run.root.glob("iterations/*/metrics.json")}
    journals = {path: path.read_text().split("\n")[:-1] for path in run.root.glob("iterations/*/journal.jsonl")}
    return metrics | journals


def check_kept(before: dict[Path, list[str]], run: RunFolder) -> None:
    now = finished_work(run)
    for path, lines in before.items():
        assert now[path][: len(lines)] == lines, f"{path}: something done was done again"


def test_kill_9_and_a_cancel_converge(
    whole: Done,
    alive: Alive,
    descendants: Callable[[int], set[int]],
    living: Callable[[set[int]], set[int]],
    tmp_path: Path,
) -> None:
    home, before = tmp_path / "home", {}
    for moment, end in ((in_rollouts, kill), (in_later_rollouts, cancel), (in_training, kill), (in_release, kill)):
        environment, log = marked(), tmp_path / f"{moment.__name__}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [*COMMAND, str(home)], cwd=ROOT, env=environment, stdout=output, stderr=output, text=True
            )
        until(lambda moment=moment: moment(home), process)
        family = descendants(process.pid)
        end(process, home, log)
        until(lambda mark=environment["RATCHET_TEST_MARK"]: alive(mark) == [], seconds=30)
        until(lambda family=family: not living(family), seconds=30)
        check_kept(before, run_of(home))
        before = finished_work(run_of(home))
    done = subprocess.run([*COMMAND, str(home)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    run = run_of(home)
    check_kept(before, run)
    assert check_product(run)["release"]["promoted"]
    for number in range(ITERATIONS):
        here, there = run.iteration(number), whole.run.iteration(number)
        assert read_json(here.selection) == read_json(there.selection)
        assert metrics_of(here) == pytest.approx(metrics_of(there), abs=1e-6), "one seed, and yet other metrics"
