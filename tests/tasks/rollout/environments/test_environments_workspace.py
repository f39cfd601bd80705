"""The environment `workspace` in real sandboxes: its tools, and verdicts that the work cannot bring along."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from data_contracts.records import Check, Limits, Problem, ToolCall
from tasks.curriculum.config import IntakeConfig
from tasks.curriculum.intake import admit
from tasks.rollout.environments import ENVIRONMENTS, checked, open_session
from tasks.rollout.environments.base import Verified, VerifierError
from tasks.rollout.environments.handed_in import handed_in
from tasks.rollout.environments.project import SHOWN_CHARACTERS, SHOWN_HITS
from tasks.rollout.sandbox import WarmPool

BUG = "def with_vat(net, rate):\n    return net * rate\n"
FIX = "def with_vat(net, rate):\n    return net * (1 + rate)\n"
SHOP = (
    "from shop.prices import with_vat\n\n\ndef total(nets, rate):\n"
    "    return sum(with_vat(net, rate) for net in nets)\n"
)
TEST = "import unittest\nfrom shop.cart import total\n\nclass Totals(unittest.TestCase):\n"
SEEN = TEST + "    def test_none(self):\n        self.assertEqual(total([], 0.5), 0)\n"
HIDDEN = TEST + "    def test_two(self):\n        self.assertEqual(total([2, 4], 0.5), 9.0)\n"
CONTROL = (
    "import unittest\nimport shop.prices\n\nclass Control(unittest.TestCase):\n"
    "    def test(self):\n        self.assertEqual(1, 2)\n"
)
COMMAND = ("python", "-m", "unittest", "-q")


def problem(**changes: Any) -> Problem:
    fields: dict[str, Any] = {
        "id": "vat",
        "environment": "workspace",
        "prompt": "Totals are too low. Fix the shop.",
        "files": {"shop/prices.py": BUG, "shop/cart.py": SHOP, "tests/test_seen.py": SEEN, "tests/__init__.py": ""},
        "visible": (Check(name="seen", command=COMMAND),),
        "hidden": (Check(name="all", command=COMMAND),),
        "hidden_files": {"tests/test_hidden.py": HIDDEN},
        "control": {"tests/test_control.py": CONTROL},
        "protected": ("tests",),
        "solution": {"shop/prices.py": FIX},
        "limits": Limits(seconds=20.0),
    }
    return Problem(**(fields | changes))


PROBLEM = problem()
WORKSPACE = ENVIRONMENTS["workspace"]


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(1, "test") as sandboxes:
        yield sandboxes


def call(session: Any, name: str, **arguments: Any) -> Any:
    return session.call(ToolCall(name=name, arguments=arguments))


def test_a_session_from_the_first_look_to_the_hidden_verdict(pool: WarmPool) -> None:
    session = open_session(PROBLEM, pool)
    assert call(session, "list").text == "shop/cart.py 5\nshop/prices.py 2\ntests/__init__.py 0\ntests/test_seen.py 6"
    found = call(session, "search", pattern=r"with_vat\(").text
    assert found == (
        "shop/cart.py:5:     return sum(with_vat(net, rate) for net in nets)\n"
        "shop/prices.py:1: def with_vat(net, rate):\n2 lines match"
    )
    assert call(session, "search", pattern="(net", literal=True).text.endswith("3 lines match")
    assert call(session, "read", path="shop/prices.py", line=2).text == "2     return net * rate"
    assert call(session, "run").text == "1 of 1 pass" and session.visible == (1, 1)
    tried = call(session, "run", command="python -c 'from shop.cart import total; print(total([2], 0.5))'")
    assert tried.text == "exit code 0\n1.0"
    assert WORKSPACE.verify(PROBLEM, session.files, pool) == Verified(0.0, 0, 1)
    assert call(session, "edit", path="shop/prices.py", old="net * rate", text="net * (1 + rate)").text == "ok"
    assert call(session, "submit").done
    assert session.files["shop/prices.py"] == FIX
    assert WORKSPACE.verify(PROBLEM, session.files, pool) == Verified(1.0, 1, 1)


def test_edits_by_lines_and_new_files(pool: WarmPool) -> None:
    session = open_session(problem(files={"a.txt": "one\x0cpage\ntwo\nthree"}, solution={"a.txt": "x"}), pool)
    assert call(session, "edit", path="a.txt", line=2, end_line=3, text="2\n3\n4").text == "ok"
    assert session.files["a.txt"] == "one\x0cpage\n2\n3\n4\n"
    assert call(session, "edit", path="new/b.py", text="x = 1").text == "created"
    assert session.files["new/b.py"] == "x = 1\n"
    assert call(session, "run", command="cat new/b.py a.txt").text.endswith("x = 1\none\x0cpage\n2\n3\n4")
    assert call(session, "run", command="sh -c 'echo gone > a.txt; exit 3'").text == "exit code 3"
    assert session.files["a.txt"].startswith("one"), "what a program changes is a copy"


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("read", {"path": "nothing"}, "no file 'nothing'"),
        ("read", {"path": "shop/prices.py", "line": 7}, "no lines 7 to 2"),
        ("search", {"pattern": "("}, "the search failed: "),
        ("search", {"pattern": "(n|n)*$|" * 2 + "((r|a|t|e|n)+)+Z"}, "the search failed: [still running after 0.5 s]"),
        ("edit", {"path": "shop/prices.py", "text": "x"}, "exists: say what to replace"),
        ("edit", {"path": "shop/prices.py", "text": "x", "old": "net"}, "occurs 2 times"),
        ("edit", {"path": "shop/prices.py", "text": "x", "old": ""}, "edit: old: "),
        ("edit", {"path": "shop/prices.py", "text": "x", "old": "a", "line": 1}, "not both"),
        ("edit", {"path": "shop/prices.py", "text": "x", "end_line": 1}, "give `line` as well"),
        ("edit", {"path": "shop/prices.py", "text": "x", "line": 2, "end_line": 3}, "has 2"),
        ("edit", {"path": "tests/test_seen.py", "text": "", "line": 1}, "tests/test_seen.py is protected"),
        ("edit", {"path": "conftest.py", "text": ""}, "conftest.py is protected"),
        ("edit", {"path": "unittest/__init__.py", "text": ""}, "hide the standard module unittest"),
        ("edit", {"path": "shop", "text": ""}, "shop is in the way of shop/prices.py"),
        ("edit", {"path": "../x.py", "text": ""}, "no path inside the project"),
        ("edit", {"path": "./x.py", "text": ""}, "no path inside the project"),
        ("run", {"command": "python 'x"}, "cannot be read: No closing quotation"),
        ("run", {"command": "sh -c ls"}, "sh may not be run: there are python"),
        ("run", {"command": " "}, "the command is empty"),
        ("read", {"path": "shop/prices.py", "line": 2.0}, "read: line is integer"),
    ],
)
def test_a_wrong_call_is_an_observation_and_changes_nothing(
    pool: WarmPool, name: str, arguments: Any, says: str
) -> None:
    narrow = problem(programs=("python",), limits=Limits(seconds=0.5), files={**PROBLEM.files, "n.txt": "nrate" * 12})
    session = open_session(narrow, pool)
    result = call(session, name, **arguments)
    assert (result.failed, result.done) == (True, False)
    assert says in result.text
    assert session.files == narrow.files


def test_long_observations_are_cut_and_say_so(pool: WarmPool) -> None:
    session = open_session(problem(files={"a.py": "x = 1\n" * 900}, solution={"a.py": "x = 2\n"}), pool)
    assert call(session, "read", path="a.py").text.endswith("200 x = 1\n... 700 more lines")
    found = call(session, "search", pattern="x").text
    assert len(found.splitlines()) == SHOWN_HITS + 1 and found.endswith("900 lines match, the first 50 are shown")
    shown = call(session, "run", command="python -c \"print('a' * 5000 + 'END')\"").text
    assert "characters left out" in shown and shown.endswith("END") and len(shown) < SHOWN_CHARACTERS + 60


def test_hidden_files_are_nowhere_in_a_session(pool: WarmPool) -> None:
    session = open_session(PROBLEM, pool)
    shown = [
        call(session, "list").text,
        call(session, "run", command="sh -c 'find /tmp -name \"test_*\" 2>/dev/null'").text,
    ]
    shown += [str(session.tools()), str(session.messages()), call(session, "search", pattern=".").text]
    assert "tests/test_seen.py" in shown[0] and "test_seen.py" in shown[1]
    assert not any(word in text for text in shown for word in ("test_hidden", "test_control", "test_two", "9.0"))


PATCH = "import unittest\nunittest.TestCase.assertEqual = lambda *_: None\n"
FORGERIES = {
    "exit on import": {"shop/prices.py": BUG + "import sys\nsys.exit(0)\n"},
    "hard exit on import": {"shop/prices.py": BUG + "import os\nos._exit(0)\n"},
    "exit at the end": {"shop/prices.py": BUG + "import atexit, os\natexit.register(os._exit, 0)\n"},
    "print a verdict and leave": {"shop/prices.py": "import os\nos.write(2, b'OK')\nos.write(1, b'OK')\nos._exit(0)\n"},
    "assertions that pass": {"shop/prices.py": BUG + PATCH},
    "results that pass": {
        "shop/prices.py": BUG + "import unittest\nunittest.TestResult.wasSuccessful = lambda self: True\n"
    },
    "a loader that finds nothing": {
        "shop/prices.py": BUG
        + "import unittest\nunittest.TestCase.run = lambda self, result=None: result.startTest(self)\n"
    },
    "rewrite the tests on disk": {"shop/prices.py": BUG + "open('tests/test_hidden.py', 'w').write('')\n"},
    "another test file": {"tests/test_hidden.py": "", "tests/test_seen.py": ""},
    "the control file": {"tests/test_control.py": ""},
    "a conftest": {"conftest.py": PATCH, "tests/conftest.py": PATCH},
    "a sitecustomize": {"sitecustomize.py": PATCH, "usercustomize.py": PATCH, "shop/sitecustomize.py": PATCH},
    "a path file": {"x.pth": "import os; os._exit(0)", "pytest.ini": "[pytest]\npython_files = none\n"},
    "a module that hides unittest": {"unittest/__main__.py": "", "unittest.py": "", "unittest/__init__.py": ""},
    "a package of tests that leaves": {"tests/__init__.py": "import os\nos._exit(0)\n"},
    "a fork that answers": {"shop/prices.py": BUG + "import os\nif os.fork(): os._exit(0)\n"},
    "paths that leave": {"../x.py": "", "/tmp/x.py": "", "shop/../shop/prices.py": FIX},
    "a file in place of a folder": {"shop": FIX, "tests/test_hidden.py/x.py": ""},
}


@pytest.mark.parametrize("planted", FORGERIES.values(), ids=FORGERIES)
def test_what_the_agent_planted_does_not_pass(pool: WarmPool, planted: dict[str, str]) -> None:
    assert WORKSPACE.verify(PROBLEM, {**PROBLEM.files, **planted}, pool) == Verified(0.0, 0, 1)


def test_what_the_agent_planted_spoils_no_sound_work(pool: WarmPool) -> None:
    junk = {path: text for planted in FORGERIES.values() for path, text in planted.items() if path != "shop/prices.py"}
    work = {**PROBLEM.files, **junk, "shop/prices.py": FIX, "shop/more.py": "x = 1\n"}
    assert set(handed_in(PROBLEM, work)) == {*PROBLEM.files, "shop/more.py"}
    assert WORKSPACE.verify(PROBLEM, work, pool) == Verified(1.0, 1, 1)


def test_without_its_control_an_exit_code_would_be_believed(pool: WarmPool) -> None:
    """These forgeries do pass the bare command: it is the control that refuses them."""
    believed = []
    for name, planted in FORGERIES.items():
        files = {**PROBLEM.files, **planted, **PROBLEM.hidden_files}
        if all(path in PROBLEM.files for path in planted) and pool.run(COMMAND, files, PROBLEM.limits).exit_code == 0:
            believed.append(name)
    assert believed == [
        "hard exit on import", "exit at the end", "print a verdict and leave", "assertions that pass",
        "results that pass", "a loader that finds nothing", "a package of tests that leaves", "a fork that answers",
    ]  # fmt: skip


def test_a_control_that_is_cut_short_shows_nothing(pool: WarmPool) -> None:
    hanging = problem(control={"tests/test_control.py": "while True:\n    pass\n"}, limits=Limits(seconds=3.0))
    work = {**PROBLEM.files, "shop/prices.py": FIX}
    assert WORKSPACE.verify(hanging, work, pool) == Verified(0.0, 0, 1)
    assert "under its control it is ended by timeout" in WORKSPACE.trial(hanging, work, pool).failures[0].message


def test_several_commands_give_a_share(pool: WarmPool) -> None:
    both = problem(
        hidden=(*PROBLEM.hidden, Check(name="only", command=("python", "-m", "unittest", "tests.test_seen")))
    )
    assert WORKSPACE.verify(both, both.files, pool) == Verified(0.0, 0, 2), "the second one's control does not fail"
    control = {**both.control, "tests/test_seen.py": CONTROL}
    both = both.model_copy(update={"control": control})
    assert WORKSPACE.verify(both, both.files, pool) == Verified(0.5, 1, 2)


def test_intake_admits_it(pool: WarmPool) -> None:
    result = admit(PROBLEM, pool)
    assert (result.admitted, result.reason) == (True, "")
    assert admit(problem(visible=()), pool).admitted


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"solution": {"shop/cart.py": SHOP + "\n"}}, "reference solution fails: hidden check 'all': exit code 1"),
        ({"files": {**PROBLEM.files, "shop/prices.py": FIX}}, "passes all its hidden checks"),
        ({"control": {"tests/control.py": CONTROL}}, "hidden check 'all': it passes with the control files laid over"),
        ({"control": {}}, "control: empty: give files under which every hidden check fails"),
        ({"hidden": (Check(name="h", code="assert 1"),)}, "check 'h' has code: give `command`, or write environment"),
        ({"solution": {"tests/test_seen.py": ""}}, "solution: tests/test_seen.py is protected, so it cannot be handed"),
        ({"files": {"a.py": "while True: pass\n"}, "visible": (Check(name="v", command=("python", "a.py")),),
          "limits": Limits(seconds=0.3)}, "ended by timeout: raise limits.seconds"),
        ({"environment": "repair"}, "check 'seen' has a command: give `code`, or write environment = 'workspace'"),
        ({"environment": "garden"}, "problem vat: no environment 'garden': write one of repair, verifiers, workspace"),
    ],
)  # fmt: skip
def test_intake_says_what_to_mend(pool: WarmPool, changes: Any, words: str) -> None:
    result = admit(problem(**changes), pool)
    assert not result.admitted
    assert words in result.reason


def test_a_check_that_changes_its_mind_is_rejected(pool: WarmPool) -> None:
    coin = Check(name="coin", command=("python", "-c", "import os; assert os.urandom(1)[0] % 2"))
    result = admit(problem(visible=(coin,)), pool, IntakeConfig(repeats=20))
    assert "not deterministic: the untouched problem" in result.reason


def test_the_state_of_a_session_is_kept_and_put_back(pool: WarmPool) -> None:
    session: Any = open_session(PROBLEM, pool)
    before = session.snapshot()
    call(session, "edit", path="shop/new.py", text="x = 1")
    call(session, "run")
    after = session.snapshot()
    session.restore(before)
    assert (session.files, session.visible) == (PROBLEM.files, None)
    call(session, "edit", path="shop/prices.py", line=1, text="")
    assert before.files == PROBLEM.files, "a snapshot stays as it is"
    other: Any = open_session(PROBLEM, pool)
    other.restore(after)
    assert other.files == {**PROBLEM.files, "shop/new.py": "x = 1\n"} and other.visible == (1, 1)


@pytest.mark.parametrize(
    "wrong", [Verified(float("nan"), 0, 1), Verified(float("inf"), 1, 1), Verified(1.5, 1, 1), Verified(-0.1, 0, 1),
              Verified(1.0, 2, 1), Verified(1.0, 0, 0)]
)  # fmt: skip
def test_a_verdict_outside_of_0_to_1_is_no_verdict(wrong: Verified) -> None:
    with pytest.raises(VerifierError, match="no score from 0 to 1"):
        checked(wrong)
    assert checked(Verified(0.5, 1, 2)) == (0.5, 1, 2)
