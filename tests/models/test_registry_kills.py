"""Every operation of the registry killed before, after and within every write: the state before, or the one after."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., list[dict[str, Any]]]
Command = dict[str, Any]

FOUR = [{"op": "publish", "mark": mark} for mark in "abcd"]
SERVING = [*FOUR, {"op": "promote", "version": 1}, {"op": "promote", "version": 2}]
"""Releases 1 to 4, of which 2 serves and 1 served before."""


def trial(stage: int = 0, candidate: int = 3) -> Command:
    body = {"id": "t", "champion": 2, "candidate": candidate, "stage": stage, "share": 0.1, "since": "then"}
    return {"op": "trial", "trial": body}


END = {"op": "trial", "trial": None}
ON_TRIAL = [*SERVING, trial()]
OPERATIONS: dict[str, list[tuple[list[Command], Command]]] = {
    "publish": [(SERVING, {"op": "publish", "mark": "e"})],
    "promote": [(ON_TRIAL, {"op": "promote", "version": 3})],
    "rollback": [(ON_TRIAL, {"op": "rollback", "version": 2})],
    "trial": [(SERVING, trial()), (ON_TRIAL, trial(stage=1)), (ON_TRIAL, END)],
    "quarantine": [
        (ON_TRIAL, {"op": "quarantine", "version": 2}),
        (ON_TRIAL, {"op": "quarantine", "version": 3}),
        ([*SERVING, {"op": "quarantine", "version": 3}], {"op": "lift", "version": 3}),
    ],
    "collect": [(SERVING, {"op": "collect"})],
}
INVISIBLE = ("components", "folders")
"""What a killed publication may leave more of: no reader sees it, and the next attempt, or a collection, takes it."""


@pytest.fixture(scope="module")
def snapshot(home: Path, run: Run) -> Callable[[list[Command]], Callable[[], None]]:
    """Brings the home to the state after some operations; what is returned brings it back there."""
    known: dict[str, Path] = {}

    def restore(source: Path) -> None:
        shutil.rmtree(home)
        shutil.copytree(source, home)

    def prepare(operations: list[Command]) -> Callable[[], None]:
        if str(operations) not in known:
            if operations == SERVING:
                ended = run({"do": "operate", "name": "agent", "offered": str(home / "offered"), "ops": operations})
            else:
                prepare(SERVING)()
                rest = operations[len(SERVING) :]
                ended = run({"do": "operate", "name": "agent", "offered": str(home / "offered"), "ops": rest})
            assert ended[0]["exit"] == 0
            known[str(operations)] = home.with_name(f"{home.name}-{len(known)}")
            shutil.copytree(home, known[str(operations)])
        return lambda: restore(known[str(operations)])

    return prepare


@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_anywhere_the_state_is_the_one_before_or_after(
    name: str,
    home: Path,
    run: Run,
    snapshot: Callable[[list[Command]], Callable[[], None]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    points, seen = 0, set()
    for operations, operation in OPERATIONS[name]:
        restore = snapshot(operations)
        command = {"name": "agent", "offered": str(home / "offered"), **operation}

        def told(do: str, command: Command = command) -> Any:
            ended = run({**command, "do": do})[0]
            assert ended["exit"] == 0
            return ended["result"]

        restore()
        before = told("state")
        told("operate")
        after = told("state")
        assert before != after
        for number in count(1):
            ends = []
            for when in ("before", "after", "torn"):
                restore()
                ends.append(run({**command, "do": "operate", "die_at": number, "when": when})[0]["exit"])
                if ends[-1] != -9:
                    continue
                points += 1
                result = told("settle")
                hidden = INVISIBLE if name == "publish" else ()
                found = without(result["found"], hidden)
                assert found in (without(before, hidden), without(after, hidden)), (number, when)
                assert result["then"] == after and result["again"] == 0, (number, when)
                seen.add(found == without(after, hidden))
            if ends[0] == 0:
                break
    with capsys.disabled():
        print(f" {name}: {points} points", end="")
    assert points >= 12
    assert seen == {True, False}, "some kills fell before the decisive write, some after it"


def without(state: dict[str, Any], hidden: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in hidden}
