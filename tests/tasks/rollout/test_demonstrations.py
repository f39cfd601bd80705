"""The scripted expert: what it leaves behind, and that it keeps to the training side of the split."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest

from tasks.curriculum.generator.problems import FILE, generate
from tasks.curriculum.generator.split import all_on
from tasks.rollout.demonstrations import CARELESS, SKILLED, Demonstration, demonstrate, with_more_bugs
from tasks.rollout.sandbox import WarmPool

MANY = generate(12, "train", "short", 150) + generate(12, "train", "medium", 30)
PROBLEMS = generate(11, "train", "short", 12) + generate(11, "train", "medium", 4)


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(size=1, name="demonstrations") as warm:
        yield warm


def calls(demonstration: Demonstration) -> list[dict[str, object]]:
    return [json.loads(step.text.split("\n")[1]) for step in demonstration.steps]


def after_edits(source: str, demonstration: Demonstration) -> list[str]:
    """The file after each edit."""
    lines, files = source.splitlines(), []
    for call in calls(demonstration):
        if call["name"] == "edit":
            lines[call["arguments"]["line"] - 1] = call["arguments"]["text"]  # type: ignore[index]
            files.append("\n".join(lines) + "\n")
    return files


def test_more_bugs_are_on_other_lines_and_on_the_training_side() -> None:
    further = []
    for number, problem in enumerate(PROBLEMS):
        harder = with_more_bugs(problem, 2, Random(number))
        broken = [a != b for a, b in zip(*(x[FILE].splitlines() for x in (harder.files, harder.solution)), strict=True)]
        given = [
            a != b for a, b in zip(*(x[FILE].splitlines() for x in (problem.files, problem.solution)), strict=True)
        ]
        further.append(sum(broken) - sum(given))
        assert all(now for now, before in zip(broken, given, strict=True) if before)
        assert harder.limits.turns == problem.limits.turns + 4
        assert harder.solution == problem.solution
        assert all_on(harder.files[FILE], "train")
    assert set(further) <= {0, 1, 2} and further.count(2) > len(PROBLEMS) / 2


def test_every_state_on_the_way_to_the_solution_is_on_the_training_side(pool: WarmPool) -> None:
    habits = SKILLED._replace(wrong_edit=0.5)
    states = 0
    for number, problem in enumerate(MANY):
        harder = with_more_bugs(problem, 2, Random(number))
        files = after_edits(harder.files[FILE], demonstrate(harder, habits, Random(number), pool))
        assert all(all_on(file, "train") for file in (harder.files[FILE], *files)), problem.id
        states += len(files)
    assert states > 3 * len(MANY)


def test_no_further_bugs_leave_the_problem_as_it_is() -> None:
    assert with_more_bugs(PROBLEMS[0], 0, Random(0)) == PROBLEMS[0]


def test_the_skilled_expert_mends_what_its_turns_allow_and_its_mistakes_carry_no_loss(pool: WarmPool) -> None:
    mistakes, mended = 0, 0
    for number, problem in enumerate(PROBLEMS):
        shown = demonstrate(problem, SKILLED, Random(number), pool)
        files = after_edits(problem.files[FILE], shown)
        mended += files[-1] == problem.solution[FILE]
        assert len(shown.steps) <= problem.limits.turns
        assert calls(shown)[0]["name"] == "read" and calls(shown)[-1]["name"] == "submit"
        assert all(all_on(file, "train") for file in files)
        mistakes += sum(not step.trained for step in shown.steps)
    assert mistakes > 0
    assert mended >= len(PROBLEMS) - 3, "only a budget of turns that its mistakes used up stops it"


def test_the_careless_expert_leaves_some_broken_and_learns_its_mistakes(pool: WarmPool) -> None:
    shown = [demonstrate(problem, CARELESS, Random(number), pool) for number, problem in enumerate(PROBLEMS)]
    left = [
        after_edits(problem.files[FILE], one)[-1] != problem.solution[FILE]
        for problem, one in zip(PROBLEMS, shown, strict=True)
    ]
    assert 0 < sum(left) < len(left)
    assert all(step.trained for one in shown for step in one.steps)


def test_one_seed_gives_one_demonstration(pool: WarmPool) -> None:
    assert demonstrate(PROBLEMS[0], CARELESS, Random(3), pool) == demonstrate(PROBLEMS[0], CARELESS, Random(3), pool)
