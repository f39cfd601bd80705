"""The environment `repair`, in a real sandbox."""

import time
from random import Random

import pytest

from data_contracts.records import Check, Problem, ToolCall
from tasks.curriculum.generator import generate
from tasks.curriculum.generator.problems import FILE
from tasks.curriculum.generator.split import all_on
from tasks.rollout.demonstrations import CARELESS, SKILLED, demonstrate
from tasks.rollout.environments import open_session
from tasks.rollout.sandbox import WarmPool

SOURCE = "def add(a, b):\n    return a - b\n"


@pytest.fixture(scope="module")
def pool():
    with WarmPool(2, "test") as sandboxes:
        yield sandboxes


def session(pool, **changes):
    fields = {
        "id": "p1",
        "prompt": "Fix it.",
        "files": {"main.py": SOURCE},
        "solution": {"main.py": SOURCE.replace("-", "+")},
        "visible": [Check(name="v", code="assert add(1, 2) == 3")],
        "hidden": [Check(name="h", code="assert add(2, 2) == 4")],
    }
    return open_session(Problem(**(fields | changes)), pool)


def call(s, name, **arguments):
    return s.call(ToolCall(name=name, arguments=arguments))


def test_read_edit_test_submit(pool) -> None:
    s = session(pool)
    assert call(s, "read").text == "1 def add(a, b):\n2     return a - b"
    failing = call(s, "test").text
    assert failing.startswith("0 of 1 pass\nassert add(1, 2) == 3") and "-1" in failing
    assert call(s, "edit", line=2, text="    return a + b").text == "ok"
    assert call(s, "test").text == "1 of 1 pass" and s.visible == (1, 1)
    assert call(s, "submit").done
    assert s.files == {"main.py": SOURCE.replace("-", "+")}


def test_an_edit_can_replace_a_range_by_more_lines(pool) -> None:
    s = session(pool)
    call(s, "edit", line=1, end_line=2, text="def add(a, b):\n    c = a + b\n    return c")
    assert s.files["main.py"] == "def add(a, b):\n    c = a + b\n    return c\n"


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("open", {}, "no tool 'open'"),
        ("edit", {"line": 9, "text": "x"}, "main.py has 2"),
        ("edit", {"line": 0, "text": "x"}, "main.py has 2"),
        ("edit", {"line": 2, "end_line": 1, "text": "x"}, "no lines 2 to 1"),
        ("edit", {"line": "2", "text": "x"}, "line is integer"),
        ("edit", {"line": True, "text": "x"}, "line is integer"),
        ("edit", {"text": "x"}, "edit takes path, line, end_line, text"),
        ("read", {"path": "../etc/passwd"}, "no file '../etc/passwd'"),
        ("test", {"verbose": True}, "test takes no arguments"),
    ],
)
def test_a_wrong_call_is_an_observation_and_changes_nothing(pool, name, arguments, says) -> None:
    s = session(pool)
    result = call(s, name, **arguments)
    assert result.failed and not result.done and says in result.text
    assert s.files == {"main.py": SOURCE}


def test_several_files_want_a_path(pool) -> None:
    s = session(pool, files={"main.py": SOURCE, "b.py": "x = 1\n"})
    assert "there are b.py, main.py" in call(s, "read").text
    assert call(s, "read", path="b.py").text == "1 x = 1"


@pytest.mark.parametrize(
    "loop",
    [
        "def add(a, b):\n    while True: pass",
        "def add(a, b):\n    while True:\n        try: pass\n        except BaseException: pass",
        "while True: pass",
        "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\ntime.sleep(1e6)",
    ],
)
def test_an_endless_loop_ends_at_the_limit_and_the_session_goes_on(pool, loop) -> None:
    s = session(pool, limits={"seconds": 0.5})
    call(s, "edit", line=1, end_line=2, text=loop)
    began = time.monotonic()
    result = call(s, "test")
    assert time.monotonic() - began < 5
    assert result.text in [f"0 of 1 pass\n{at}: timed out after 0.5 s" for at in ("add(1, 2) == 3", "import")]
    assert not result.done
    lines = len(loop.splitlines())
    call(s, "edit", line=1, end_line=lines, text="def add(a, b):\n    return a + b")
    assert call(s, "test").text == "1 of 1 pass"
    assert call(s, "submit").done


def test_the_skilled_expert_reads_recovers_and_hands_in_what_passes(pool) -> None:
    problems = generate(5, "train", "short", 16)
    mistakes = solved = 0
    for problem in problems:
        shown = demonstrate(problem, SKILLED, Random(problem.id), pool)
        assert '"read"' in shown.steps[0].text and '"submit"' in shown.steps[-1].text
        solved += shown.steps[-2].observation == f"{len(problem.visible)} of {len(problem.visible)} pass"
        mistakes += sum(not step.trained for step in shown.steps)
        assert all_on(problem.files[FILE], "train")
    assert solved >= 14, "only two mistakes in a row leave no turn to recover"
    assert 0 < mistakes < 16, "mistakes are shown, without loss on them"


def test_the_careless_expert_often_submits_untested(pool) -> None:
    problems = generate(6, "train", "short", 40)
    shown = [demonstrate(problem, CARELESS, Random(problem.id), pool) for problem in problems]
    untested = sum('"test"' not in "".join(step.text for step in d.steps) for d in shown)
    assert 10 <= untested <= 36
    assert all(step.trained for d in shown for step in d.steps)
