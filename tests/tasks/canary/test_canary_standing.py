"""Canaries on live traffic against a real registry: their endings, and a SIGKILL before every single write."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., dict[str, Any]]
WINS, LOSES, EQUAL = (
    {"champion": champion, "candidate": candidate} for champion, candidate in ((0.4, 1.0), (0.9, 0.0), (0.5, 0.5))
)
CONFIG: dict[str, Any] = {
    "traffic": "live",
    "stages": [
        {"share": 0.25, "sessions": 10},
        {"share": 0.5, "sessions": 10, "bake_seconds": 0.05},
        {"share": 1.0, "sessions": 10, "bake_seconds": 0.05},
    ],
    "metrics": [
        {"name": "success", "better": "higher", "criticality": "promotes", "margin": 0.1, "scale": 1.0},
        {"name": "errors", "better": "lower", "criticality": "promotes", "margin": 0.5, "scale": 1.0},
    ],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run a command in a process of its own; returns how it ended, and what it told."""
    script = Path(__file__).with_name("standing_zygote.py")
    zygote = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert zygote.stdin is not None and zygote.stdout is not None

    def send(**command: Any) -> dict[str, Any]:
        zygote.stdin.write(json.dumps(command) + "\n")
        zygote.stdin.flush()
        answer: dict[str, Any] = json.loads(zygote.stdout.readline())
        return answer

    yield send
    zygote.stdin.close()
    assert zygote.wait(timeout=30) == 0


@pytest.fixture(scope="module")
def prepared(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("prepared")
    assert run(do="prepare", home=str(home))["exit"] == 0
    return home


@pytest.fixture
def new_home(prepared: Path, tmp_path: Path) -> Callable[[], str]:
    """Copies of the prepared home, each another's own."""
    numbers = iter(range(1000))

    def copy() -> str:
        folder = tmp_path / str(next(numbers))
        shutil.copytree(prepared, folder)
        return str(folder)

    return copy


def ended(run: Run, home: str, **command: Any) -> dict[str, Any]:
    """The status that a canary ended with."""
    answer = run(do="canary", home=home, **{"config": CONFIG, "traffic": WINS} | command)
    assert answer["exit"] == 0
    status: dict[str, Any] = answer["result"]["status"]
    return status


def test_a_better_candidate_goes_through_every_stage_and_is_promoted(run: Run, new_home: Callable[[], str]) -> None:
    home = new_home()
    status = ended(run, home)
    seen = run(do="seen", home=home)["result"]
    assert (status["ending"], status["stage"], status["share"]) == ("promoted", 2, 1.0)
    assert (seen["champion"], seen["trial"], seen["statuses"]) == (2, None, [status])
    moves = seen["moves"]
    assert [(m["kind"], (m["trial"] or {}).get("share")) for m in moves[1:]] == [
        ("trial", 0.25), ("trial", 0.5), ("trial", 1.0), ("promote", None),
    ]  # fmt: skip
    assert moves[-1]["evidence"][0]["verdict"] == "PASS" and moves[-1]["from_version"] == 1


def test_a_worse_candidate_is_rolled_back_in_its_first_stage(run: Run, new_home: Callable[[], str]) -> None:
    home = new_home()
    status = ended(run, home, traffic=LOSES)
    seen = run(do="seen", home=home)["result"]
    assert (status["ending"], status["stage"], seen["champion"], seen["trial"]) == ("rolled_back", 0, 1, None)
    assert "success" in status["why"]
    again = ended(run, home, traffic=WINS)
    assert (again["id"], again["ending"]) == ("release-2-2", "promoted"), "a second canary is one of its own"


def test_an_undecided_candidate_waits_for_evidence_before_it_gets_everything(
    run: Run, new_home: Callable[[], str]
) -> None:
    home = new_home()
    status = ended(run, home, traffic=EQUAL, looks=8)
    assert (status["ending"], status["share"], status["waits_for"]) == (None, 0.5, "evidence")
    held = ended(run, home, traffic=EQUAL, config=CONFIG | {"max_sessions": 90})
    assert (held["ending"], held["id"]) == ("held", status["id"])
    assert run(do="seen", home=home)["result"]["champion"] == 1


def test_traffic_that_stops_holds_and_goes_on_when_it_is_back(run: Run, new_home: Callable[[], str]) -> None:
    home = new_home()
    impatient = CONFIG | {"stopped_seconds": 0.001}
    status = ended(run, home, config=impatient, traffic=None, looks=3)
    assert (status["ending"], status["action"], status["waits_for"], status["stage"]) == (None, "hold", "traffic", 0)
    assert run(do="seen", home=home)["result"]["trial"]["share"] == 0.25
    assert ended(run, home)["ending"] == "promoted"


def test_a_newer_candidate_ends_the_canary_and_is_left_alone(run: Run, new_home: Callable[[], str]) -> None:
    """Whatever the older one would have done next: it moves neither the newer trial nor the alias."""
    for at, chances in ((1, WINS), (0, LOSES), (2, WINS)):
        home = new_home()
        status = ended(run, home, supersede_at=at, traffic=chances)
        seen = run(do="seen", home=home)["result"]
        assert status["ending"] == "superseded" and "release 3" in status["why"]
        assert (seen["champion"], seen["trial"]["id"]) == (1, "newer")


def test_a_canary_that_is_stopped_by_hand_is_over(run: Run, new_home: Callable[[], str]) -> None:
    home = new_home()
    status = ended(run, home, stop_at=2)
    assert (status["ending"], status["why"]) == ("rolled_back", "stopped by hand")
    assert run(do="seen", home=home)["result"]["champion"] == 1


def test_a_person_approves_or_rejects_and_rollback_stays_armed_meanwhile(run: Run, new_home: Callable[[], str]) -> None:
    asking = CONFIG | {"approval": "before_promotion"}
    home = new_home()
    waiting = ended(run, home, config=asking, looks=8)
    assert (waiting["ending"], waiting["waits_for"], waiting["share"]) == (None, "approval", 1.0)
    given = {"approved": True, "who": "ann"}
    assert ended(run, home, config=asking, answers={"0": given})["ending"] == "promoted"
    rejected = ended(run, new_home(), config=asking, answers={"6": {"approved": False, "who": "ann"}})
    assert (rejected["ending"], rejected["why"]) == ("rolled_back", "a person rejected it: back to the champion")


@pytest.mark.parametrize(("chances", "champion", "ending"), [(WINS, 2, "promoted"), (LOSES, 1, "rolled_back")])
def test_a_kill_before_any_write_converges(
    run: Run, new_home: Callable[[], str], chances: dict[str, float], champion: int, ending: str
) -> None:
    """State before or after: a fresh reader never sees anything else, and the same command ends as without a kill."""
    for number in itertools.count(1):
        home = new_home()
        killed = run(do="canary", home=home, config=CONFIG, traffic=chances, die_at=number)
        if killed["exit"] == 0:
            break  # it wrote less often than that: it was killed before each of its writes
        assert killed["exit"] == -9
        between = run(do="seen", home=home)["result"]
        assert between["champion"] in (1, champion)
        trial = between["trial"]
        assert trial is None or (trial["share"], trial["stage"]) in ((0.25, 0), (0.5, 1), (1.0, 2))
        status = ended(run, home, traffic=chances)
        after = run(do="seen", home=home)["result"]
        assert (status["ending"], status["id"]) == (ending, "release-2-1"), f"killed before write {number}"
        assert (after["champion"], after["trial"], after["statuses"]) == (champion, None, [status])
        assert all(move["state"] in ("done", "undone") for move in after["moves"])
        done = [move for move in after["moves"] if move["state"] == "done"]
        assert sum(move["kind"] == "promote" and move["to_version"] == 2 for move in done) == (champion == 2)
        stages = [move["trial"]["stage"] for move in done if move["trial"]]
        assert stages == sorted(set(stages)), "no stage twice, none back"
    writes = killed["result"]["writes"]
    print(f"\n{ending}: {number - 1} kills, before {', '.join(writes)}")
    assert number - 1 >= len(set(writes)) >= 5
