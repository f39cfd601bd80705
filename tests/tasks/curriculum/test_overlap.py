"""Training problems like a held-out one, problems that come twice, and which side of a split they are on."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.errors import UserError
from data_contracts.problems import write_pack
from data_contracts.quarantine import Quarantine
from data_contracts.records import Check, Problem
from tasks.curriculum.config import IntakeConfig
from tasks.curriculum.generator import generate
from tasks.curriculum.overlap import family, overlaps, repeated
from tasks.curriculum.steps import drop_contaminated
from tasks.curriculum.supply import is_held_out, split_pack
from tasks.problems import admitted

CODE = "def f(a, b):\n    total = 0\n    for x in range(a):\n        total = total + x * b\n    return total + 1\n"
RENAMED = "def g(n, k):\n    s = 0  # the sum\n    for i in range(n):\n        s = s + i * k\n    return s + 1\n"
NEAR = CODE.replace("+ 1", "+ 2")
OTHER = "def h(word):\n    return word.upper() + word.lower() + word.title() + word.strip()\n"


def problem(name: str, solution: str, broken: str = "x = 1\n", path: str = "main.py") -> Problem:
    check = (Check(name="c", code="assert f(1, 2) == 1"),)
    return Problem(id=name, prompt="p", files={path: broken}, solution={path: solution}, visible=check, hidden=check)


def test_likeness_is_that_of_the_code_and_not_of_its_names() -> None:
    train = [problem("same", CODE), problem("renamed", RENAMED), problem("near", NEAR), problem("other", OTHER)]
    found = {each.train: each for each in overlaps(train, [problem("h1", "x = 1\n"), problem("h2", CODE)], 0.5)}
    assert {name: found[name].heldout for name in found} == {"same": "h2", "renamed": "h2", "near": "h2"}
    assert found["same"].similarity == found["renamed"].similarity == 1.0
    # 30 tokens give 18 windows of 13; the last token, which differs, is in one of them: 17 shared of 19
    assert found["near"].similarity == pytest.approx(17 / 19)
    assert [each.train for each in overlaps(train, [problem("h2", CODE)], 0.95)] == ["same", "renamed"]


def test_text_that_is_no_python_is_compared_as_it_stands() -> None:
    words = " ".join(f"word{i}" for i in range(40))
    found = overlaps([problem("t", words, path="a.txt")], [problem("h", words + " more", path="a.txt")], 0.9)
    assert found[0].similarity == pytest.approx(28 / 29)


def test_a_problem_again_is_told_by_its_code_and_another_fault_is_another_problem() -> None:
    again = problem("b", RENAMED, RENAMED.replace("+ 1", "+ 2"))
    problems = [problem("a", CODE, NEAR), again, problem("c", CODE, OTHER)]
    assert repeated(problems) == {"b": "a"}


def test_mutants_of_one_module_are_on_one_side() -> None:
    packs = [[problem(f"{i}-{k}", f"def f():\n    return {i}\n", f"x = {k}\n") for k in range(4)] for i in range(60)]
    everything = [each for pack in packs for each in pack]
    assert all(len({is_held_out(each) for each in pack}) == 1 for pack in packs)
    assert len({family(each) for each in everything}) == 60
    train, held = split_pack(everything)
    assert 4 * 6 <= len(held) <= 4 * 26 and len(train) + len(held) == 240
    with pytest.raises(UserError, match="4 usable problems and 1 different solutions is too small"):
        split_pack(packs[0])


def test_generated_problems_are_apart() -> None:
    train, held = generate(0, "train", "short", 40), generate(0, "heldout", "short", 40)
    assert overlaps(train, held, 0.9) == []


def test_contaminated_problems_are_quarantined_once_with_what_they_are_like(tmp_path: Path) -> None:
    sides = {"train": [problem("t1", RENAMED), problem("t2", OTHER)], "heldout": [problem("h", CODE)]}
    files = [write_pack(tmp_path / side, problems) for side, problems in sides.items()]
    assert drop_contaminated.fn(*files, tmp_path / "q", IntakeConfig(), "run") == 1
    assert list(admitted(files[0])) == ["t2"]
    (row,) = Quarantine(tmp_path / "q").rows("problems")
    assert (row["key"], row["rule"]) == ("t1", "contamination")
    assert row["reason"] == "its solution is like that of the held-out h (100% of both)"
    assert row["row"]["solution"] == {"main.py": RENAMED}
    assert drop_contaminated.fn(*files, tmp_path / "q", IntakeConfig(), "run") == 0
