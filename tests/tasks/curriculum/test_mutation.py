"""Problems from a project with tests: every mutant that its tests tell, and no other."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_contracts.errors import UserError
from data_contracts.problems import read_pack
from tasks.curriculum.intake import admit
from tasks.curriculum.mutation import Mutation, Terms, mutate, open_project
from tasks.curriculum.mutation.hiding import without_tests
from tasks.curriculum.mutation.mutants import mutants_of
from tasks.curriculum.mutation.project import RUNNER
from tasks.rollout.environments import environment_of
from tasks.rollout.sandbox import WarmPool

MODULE = '''"""Prices."""

RATES = {"a": 2}


def net(price, rate=2):
    """Price without what was added; 3 < 4."""
    if price < 0 and rate:  # no negative prices
        raise ValueError("negative")
    left = price - rate
    return max(left, 0)


def unused(a):
    return not a
'''
TESTS = """import unittest

from shop.prices import net


class Prices(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(net(5), 3)

    def test_rate(self):
        self.assertEqual(net(9, 4), 5)

    def test_zero(self):
        self.assertEqual(net(1, 2), 0)

    def test_that_never_passed(self):
        self.assertEqual(net(1), 100)


def test_negative():
    try:
        net(-1)
    except ValueError:
        return
    raise AssertionError("no error")


def test_negative_free():
    assert net(-1, 0) == 0
"""


@pytest.fixture(scope="module")
def pool() -> WarmPool:
    with WarmPool(2, "verifier") as pool:
        yield pool


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shop-project")
    for path, text in {
        "shop/prices.py": MODULE,
        "tests/test_prices.py": TESTS,
        "tests/test_lost.py": "import nothing_of_this_name\n\n\ndef test_lost():\n    assert True\n",
    }.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture(scope="module")
def made(folder: Path, pool: WarmPool) -> Mutation:
    return mutate(open_project(folder), pool, Terms(per_module=50, tries=50, seconds=10))


def test_each_kind_changes_one_place_and_keeps_the_layout() -> None:
    changed = {(mutant.kind, mutant.of(MODULE).splitlines()[mutant.line - 1].strip()) for mutant in mutants_of(MODULE)}
    assert changed == {
        ("constant", "def net(price, rate=3):"),
        ("constant", "def net(price, rate=1):"),
        ("comparison", "if price <= 0 and rate:  # no negative prices"),
        ("comparison", "if price > 0 and rate:  # no negative prices"),
        ("constant", "if price < 1 and rate:  # no negative prices"),
        ("logic", "if price < 0 or rate:  # no negative prices"),
        ("condition", "if not (price < 0 and rate):  # no negative prices"),
        ("arithmetic", "left = price + rate"),
        ("argument order", "return max(0, left)"),
        ("constant", "return max(left, 1)"),
        ("return value", "return None"),
        ("logic", "return a"),
    }
    for mutant in mutants_of(MODULE):
        differ = [a != b for a, b in zip(MODULE.splitlines(), mutant.of(MODULE).splitlines(), strict=True)]
        assert sum(differ) == 1


def test_places_are_right_behind_letters_of_many_bytes_and_over_several_lines() -> None:
    source = 'def f(a, b):\n    return ("äöü€", a +\n            b)\n'
    (plus,) = (mutant for mutant in mutants_of(source) if mutant.kind == "arithmetic")
    assert plus.of(source) == source.replace("a +", "a -")
    assert plus.line == 2


@given(st.sampled_from([ast, json, subprocess]), st.integers(0, 10_000))
def test_a_mutant_of_real_code_is_one_change_at_the_place_it_names(module: object, number: int) -> None:
    source = Path(module.__file__).read_text()  # type: ignore[attr-defined]
    mutants = mutants_of(source)
    mutant = mutants[number % len(mutants)]
    code, changed = source.encode(), mutant.of(source).encode()
    assert changed != code
    assert (changed[: mutant.start], changed[mutant.start + len(mutant.text) :]) == (
        code[: mutant.start],
        code[mutant.end :],
    )


def test_a_test_is_taken_out_with_its_decorators_and_nothing_else() -> None:
    source = "class A:\n    @d\n    def test_a(self):\n        pass\n\n\ndef test_b():\n    pass\n\n\nX = 1\n"
    hidden = without_tests({"t.py": source, "u.py": "x"}, {"t.py::A.test_a", "t.py::test_b"})
    assert hidden == {"t.py": "class A:\n    pass\n\n\n\n\nX = 1\n"}


def test_every_mutant_is_kept_or_dropped_for_a_reason(made: Mutation) -> None:
    assert made.tried == 13
    assert made.dropped == Counter(
        {
            "no test tells it: equivalent, or not covered": 5,  # <= 0, < 1, max(0, left), and two in `unused`
            "one test alone tells it: none to show, or none to hide": 2,  # the two rates: test_plain
            "every test fails": 1,  # not (price < 0 and rate)
        }
    )
    assert len({problem.id for problem in made.problems}) == len(made.problems) == 5


def test_the_agent_sees_a_failing_test_and_another_is_hidden(made: Mutation, pool: WarmPool) -> None:
    for problem in made.problems:
        shown, hidden = problem.files["tests/test_prices.py"], problem.hidden_files["tests/test_prices.py"]
        names = {node.name for node in ast.walk(ast.parse(hidden)) if isinstance(node, ast.FunctionDef)}
        seen = {node.name for node in ast.walk(ast.parse(shown)) if isinstance(node, ast.FunctionDef)}
        assert seen < names == {"test_plain", "test_rate", "test_zero", "test_negative", "test_negative_free"}
        assert "tests/test_lost.py" not in problem.visible[0].command
        assert problem.files[RUNNER]
        environment = environment_of(problem)
        assert environment.verify(problem, problem.files, pool).score == 0
        assert environment.verify(problem, {**problem.files, **problem.solution}, pool).score == 1
        forged = {**problem.files, "shop/prices.py": "import os\nos._exit(0)\n"}
        assert environment.verify(problem, forged, pool).score == 0


def test_intake_admits_what_was_made(made: Mutation, pool: WarmPool) -> None:
    assert admit(made.problems[0], pool).reason == ""


def test_the_same_seed_makes_the_same_problems(made: Mutation, folder: Path, pool: WarmPool) -> None:
    again = mutate(open_project(folder), pool, Terms(per_module=50, tries=50, seconds=10))
    assert [p.model_dump(exclude={"limits"}) for p in again.problems] == [
        p.model_dump(exclude={"limits"}) for p in made.problems
    ]


@pytest.mark.parametrize(
    "files, says",
    [
        ({"a.py": "x = 1\n"}, "holds no tests named test_[*].py: give their pattern with --tests"),
        ({"test_a.py": "def test_a(): pass\n"}, "holds no modules named [*].py: give their pattern with --modules"),
        ({"a.py": "x = 1\n", "test_a.py": "def test_a(): assert 0\n"}, "0 tests of .* pass as it is, and two"),
        ({"a.py": "x = 1\n", "test_a.py": "import os; os._exit(3)\n"}, "cannot be run .* they ended by exit code 3"),
        ({"a.py": "def f(:\n", "test_a.py": "def test_a(): pass\ndef test_b(): pass\n"}, "a.py:1: it does not parse"),
    ],
)
def test_a_project_that_cannot_serve_is_refused_with_the_remedy(
    tmp_path: Path, pool: WarmPool, files: dict[str, str], says: str
) -> None:
    for path, text in files.items():
        (tmp_path / path).write_text(text)
    with pytest.raises(UserError, match=says):
        mutate(open_project(tmp_path), pool, Terms())


def test_the_command_writes_a_pack_and_says_what_became_of_each(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.cli", "problems", "mutate", str(folder), str(tmp_path), "--tries", "4"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    assert "dropped: " in done.stdout and "kept as problems: " in done.stdout
    reading = read_pack(tmp_path)
    assert reading.problems and not reading.rejected
