from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from data_contracts.gates import Verdict
from data_contracts.problems import read_pack, write_pack
from data_contracts.quarantine import Quarantine
from data_contracts.records import Check, Limits, Problem
from data_contracts.store import append_jsonl
from tasks.curriculum.config import IntakeConfig
from tasks.curriculum.generator import generate
from tasks.curriculum.intake import IntakeResult, admit, intake, intake_gate
from tasks.curriculum.steps import check_problems
from tasks.rollout.sandbox import SandboxError, WarmPool

BUG = "def double(x):\n    return x + 1\n"
FIX = "def double(x):\n    return x * 2\n"
LOOP = "def double(x):\n    while True:\n        pass\n"
COIN = "import os\n\ndef double(x):\n    return {} if x > 1 else os.urandom(1)[0] % 2 * 2\n"


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(2, name="verifier") as pool:
        yield pool


def problem(name: str = "double", files: str = BUG, solution: str = FIX, **changes: Any) -> Problem:
    fields: dict[str, Any] = {
        "id": name,
        "prompt": "repair double",
        "files": {"double.py": files},
        "visible": (Check(name="a", code="assert double(3) == 6"),),
        "hidden": (Check(name="a", code="assert double(5) == 10"), Check(name="one", code="assert double(1) == 2")),
        "solution": {"double.py": solution},
        "limits": Limits(seconds=1.0),
    }
    return Problem(**(fields | changes))


def test_a_sound_problem_is_admitted(pool):
    result = admit(problem(), pool)
    assert (result.problem_id, result.admitted, result.reason) == ("double", True, "")
    assert 0 < result.seconds < 20


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"solution": BUG},
            "the reference solution fails: visible check 'a': assert double(3) == 6 : got 4: "
            "mend the solution or the check",
        ),
        (
            {"solution": "def double(x:\n"},
            "reference solution fails: visible check 'a': double.py, line 1: SyntaxError",
        ),
        ({"files": FIX}, "passes all its hidden checks"),
        ({"hidden": (Check(name="one", code="assert double(1) == 2"),)}, "passes all its hidden checks"),
        ({"visible": (Check(name="one", code="assert double(1) == 2"),)}, "passes all its visible checks"),
        (
            {"files": LOOP},
            "the untouched problem does not finish its checks within the limits: ended by timeout: "
            "raise limits.seconds or mend it",
        ),
        ({"solution": LOOP}, "reference solution does not finish its checks within the limits: ended by timeout"),
    ],
)
def test_an_unsound_problem_is_rejected_with_its_reason(pool, changes, words):
    result = admit(problem(**changes), pool)
    assert not result.admitted
    assert words in result.reason


def test_a_verdict_that_changes_is_rejected(pool):
    result = admit(problem(files=COIN.format("x + 1")), pool, IntakeConfig(repeats=20))
    assert (result.admitted, "not deterministic: the untouched problem" in result.reason) == (False, True)
    result = admit(problem(solution=COIN.format("x * 2")), pool, IntakeConfig(solution_repeats=20))
    assert not result.admitted


def test_the_sandboxes_own_failure_is_named():
    class Broken:
        def call(self, request: dict[str, Any]) -> dict[str, Any]:
            raise SandboxError("no bwrap here")

    result = admit(problem(), Broken())
    assert (result.admitted, result.reason) == (False, "the sandbox itself failed on it: no bwrap here")


def test_one_bad_problem_does_not_stop_the_others(pool):
    heard: list[IntakeResult] = []
    names = ["a", "b", "c", "d"]
    pack = [problem(name, solution=BUG if name == "b" else FIX) for name in names]
    admitted, rejected = intake(pack, pool, heard.append)
    assert [p.id for p in admitted] == ["a", "c", "d"]
    assert [r.problem_id for r in rejected] == ["b"]
    assert [r.problem_id for r in heard] == names


def test_generated_problems_pass(pool):
    pack = [p for horizon in ("short", "medium") for p in generate(3, "train", horizon, 10)]
    admitted, rejected = intake(pack, pool)
    assert [r.reason for r in rejected] == []
    assert admitted == pack


@pytest.mark.parametrize(
    ("counts", "verdict"), [((9, 1), Verdict.PASS), ((1, 9), Verdict.FAIL), ((0, 0), Verdict.INCONCLUSIVE)]
)
def test_the_gate_wants_a_share_admitted(counts, verdict):
    assert intake_gate(*counts, IntakeConfig()).verdict is verdict


def test_the_step_keeps_what_it_drops(pool, tmp_path):
    file = write_pack(tmp_path, [problem("good"), problem("bad", solution=BUG)])
    append_jsonl(file, '{"id": "torn"', problem("last", prompt="again").model_dump_json())
    append_jsonl(file, problem("copy").model_dump_json())
    out, quarantine = tmp_path / "train.jsonl", tmp_path / "quarantine"
    for source in (tmp_path, file):
        assert check_problems.fn(source, out, quarantine, pool, IntakeConfig(), "run") == (2, 3)
    assert [p.id for p in read_pack(out).problems] == ["good", "last"]
    kept = Quarantine(quarantine)
    assert kept.counts("problems") == {"readable": 1, "intake": 1, "duplicate": 1}
    torn, bad, copy = kept.rows("problems")
    assert (torn["key"], torn["reason"]) == (
        "line 3",
        f"{file}:3: not JSON (Expecting ',' delimiter at column 14): write one object on one line",
    )
    assert (bad["key"], bad["reason"]) == (
        "bad",
        f"{file}:2: the reference solution fails: visible check 'a': assert double(3) == 6 : got 4: "
        "mend the solution or the check",
    )
    assert (copy["key"], copy["reason"]) == ("copy", f"{file}:5: it is good again: leave one out")
    assert Problem.model_validate(bad["row"]) == problem("bad", solution=BUG)
