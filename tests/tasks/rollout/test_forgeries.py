"""Forgeries of a verdict: each fails its check, and passes where the agent's code is judged in its own process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_contracts.records import Check, Limits
from tasks.rollout._check_child import signature
from tasks.rollout._check_plan import plan
from tasks.rollout._check_verdict import Verdict, judge, signed
from tasks.rollout.checks import CheckFailure, CheckReport, run_checks
from tasks.rollout.sandbox import WarmPool

LIMITS = Limits(seconds=20, memory_mb=128)
CLAMP = "def clamp(x, low, high):\n    return min(max(x, low), high)\n"


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(size=1, name="verifier", require_isolation=True) as warm:
        yield warm


def verdict(pool: WarmPool, source: str, *codes: str) -> CheckReport:
    checks = [Check(name=f"c{number}", code=code) for number, code in enumerate(codes)]
    return run_checks({"calc.py": source}, checks, LIMITS, pool)


def message(pool: WarmPool, source: str, code: str) -> str:
    """The one failure's message, "" where the check passes."""
    report = verdict(pool, source, code)
    assert (report.passed, report.total) == (1 - len(report.failures), 1)
    return report.failures[0].message if report.failures else ""


def naively(folder: Path, files: dict[str, str], code: str) -> bool:
    """The verdict of a verifier that runs check and code together and believes the exit code, or what is printed."""
    for name, text in (files | {"judge.py": f"from calc import *\n{code}\n"}).items():
        (folder / name).write_text(text)
    command = [sys.executable, "judge.py"]
    done = subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True)
    return done.returncode == 0 or "PASSED" in done.stdout


# one check, many tricks


HIDDEN = "assert clamp(5, 1, 3) == 3"
RAISES = "try:\n    clamp(1, 3, 1)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError('no error')"
FORGERIES = {
    "equals everything": """
class A:
    __eq__ = __lt__ = __gt__ = lambda self, other: True
def clamp(*a): return A()
""",
    "an int that equals everything": """
class A(int):
    __eq__ = lambda self, other: True
    __hash__ = int.__hash__
def clamp(*a): return A(9)
""",
    "a lying metaclass": """
class M(type):
    def __getattribute__(cls, name):
        return int.__eq__ if name == "__eq__" else type.__getattribute__(cls, name)
    __eq__ = lambda cls, other: True
    __hash__ = type.__hash__
class A(metaclass=M):
    __eq__ = lambda self, other: True
def clamp(*a): return A()
""",
    "exit in the body": """
import os
os._exit(0)
""",
    "SystemExit in the function": """
import sys
def clamp(*a): sys.exit(0)
""",
    "exit in the function": """
import os
def clamp(*a): os._exit(0)
""",
    "killed": """
import os
def clamp(*a): os.kill(os.getpid(), 9)
""",
    "printed": """
def clamp(*a):
    print("PASSED 1 passed OK")
    return 9
""",
    "errors patched": """
import builtins
builtins.AssertionError = builtins.BaseException = ValueError
def clamp(*a): return 9
""",
    "builtins patched": """
import builtins
builtins.bool = builtins.exec = builtins.eval = builtins.compile = builtins.ascii = lambda *a: True
def clamp(*a): return 9
""",
    "builtins shadowed": """
def bool(x): return True
isinstance = len = all = any = abs = lambda *a: True
__builtins__ = {"AssertionError": ValueError}
__all__ = ["bool", "isinstance", "len", "clamp", "__builtins__"]
def clamp(*a): return 9
""",
    "operator patched": """
import operator
operator.eq = lambda a, b: True
def clamp(*a): return 9
""",
    "excepthook": """
import sys
sys.excepthook = lambda *a: None
def clamp(*a): raise KeyError
""",
    "all descriptors written to": """
import os
def clamp(*a):
    for fd in range(64):
        try: os.write(fd, b"0 {'error': None}\\n" * 9)
        except OSError: pass
    os._exit(0)
""",
    "the pipe taken over": """
import os, threading
def clamp(*a):
    read, write = os.pipe()
    kept = os.dup(3)
    os.dup2(write, 3)
    def pump():
        while True:
            line = os.read(read, 65536)
            os.write(kept, line.replace(b"9", b"3").replace(b"False", b"True") + line)
    threading.Thread(target=pump, daemon=True).start()
    return 9
""",
    "forked": """
import os
def clamp(*a):
    if os.fork(): os._exit(0)
    return 9
""",
}
FOOLS = (
    *("equals everything", "an int that equals everything", "a lying metaclass", "exit in the body", "printed"),
    *("SystemExit in the function", "exit in the function", "all descriptors written to", "forked"),
)
"""Those that pass a naive verifier."""


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.parametrize("code", [HIDDEN, RAISES])
def test_a_forgery_fails(pool: WarmPool, name: str, code: str) -> None:
    report = verdict(pool, FORGERIES[name], code)
    assert (report.passed, len(report.failures)) == (0, 1), report


@pytest.mark.parametrize("name", FOOLS)
def test_the_forgery_passes_a_naive_verifier(tmp_path: Path, name: str) -> None:
    assert naively(tmp_path, {"calc.py": FORGERIES[name]}, HIDDEN)


# objects and modules that lie to a check


LIAR = """
class A:
    __eq__ = __le__ = __lt__ = __gt__ = __ge__ = __contains__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __sub__ = __rsub__ = lambda self, other: 0.0
    __hash__ = None
def f(*a): return A()
"""
IN_A_LIST = LIAR + "def g(*a): return [A()]\n"
FAKE = "import sys, types\nm = types.ModuleType('cmath')\nm.isclose = lambda *a: True\nsys.modules['cmath'] = m\n"
FINDER = """
import sys, types
class Finder:
    find_spec = staticmethod(lambda name, *a: None)
    def __init__(self):
        m = types.ModuleType('cmath'); m.isclose = lambda *a: True
        sys.modules['cmath'] = m
sys.meta_path.insert(0, Finder())
def f(*a): return 9
"""
LIES = {
    "in a loop": (LIAR, "for n in range(3):\n    assert f(n) == n"),
    "in a function": (LIAR, "def check(n):\n    assert f(n) == n\ncheck(1)"),
    "in a condition": (LIAR, "if f(1) != 1:\n    raise AssertionError"),
    "two in one": (LIAR, "assert f(1) == 1 and f(2) == 4"),
    "a chain": (LIAR, "assert 0 <= f(1) <= 3"),
    "all": (LIAR, "assert all(f(n) == n for n in range(4))"),
    "a value that was computed": (LIAR, "assert f(5) == max(1, min(5, 3))"),
    "a value with a name": (LIAR, "x = 3\nassert f(5) == x"),
    "a Fraction": (LIAR, "from fractions import Fraction\nassert f() == Fraction(1, 2)"),
    "nearly": (LIAR, "assert abs(f(5) - 3.0) < 1e-6"),
    "not unequal": (LIAR, "assert not f(1) != 3"),
    "a member": (LIAR, "assert 3 in f()"),
    "a member of what is made one by one": (LIAR, "assert 3 in (f(n) for n in range(3))"),
    "inside a list": (IN_A_LIST, "x = [3]\nassert g() == x"),
    "mock.ANY": ("import unittest.mock as m\ndef f(*a): return m.ANY\n", "assert f() == max(1, 3)"),
    "a faked module": (FAKE + "def f(*a): return 9\n", "import cmath\nassert cmath.isclose(f(), 3)"),
    "an import hook": (FINDER, "import cmath\nassert cmath.isclose(f(), 3)"),
    "a patched function": (
        "import math\nmath.isclose = lambda *a: True\ndef f(*a): return 9\n",
        "import math\nassert math.isclose(f(), 3)",
    ),
    "a patched body": (
        "import statistics\nstatistics.mean.__code__ = (lambda data: 3).__code__\ndef f(*a): return [9]\n",
        "import statistics\nassert statistics.mean(f()) == 3",
    ),
    "patched defaults": (
        "import textwrap\ntextwrap.dedent.__code__ = (lambda text: 'x').__code__\ndef f(*a): return 'y'\n",
        "import textwrap\nassert textwrap.dedent(f()) == 'x'",
    ),
    "a patched class": (
        "import fractions\nfractions.Fraction.__eq__ = lambda s, o: True\ndef f(*a): return fractions.Fraction(9)\n",
        "from fractions import Fraction\nassert f() == Fraction(1, 2)",
    ),
    "a patched test case": (
        "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\ndef f(*a): return 9\n",
        "import unittest\nunittest.TestCase().assertEqual(f(), 3)",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_not_believed_and_a_naive_verifier_believes_it(pool: WarmPool, tmp_path: Path, name: str) -> None:
    source, code = LIES[name]
    assert naively(tmp_path, {"calc.py": source}, code)
    report = verdict(pool, source, code)
    assert (report.passed, len(report.failures)) == (0, 1), report


HONEST = """
import collections, datetime, fractions
class V:
    def __init__(self, x, y): self.x, self.y = x, y
    def __eq__(self, other): return type(other) is V and (self.x, self.y) == (other.x, other.y)
    def __lt__(self, other): return self.x < other.x
    def __sub__(self, other): return V(self.x - other.x, self.y - other.y)
    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** .5
    __hash__ = None
def half(): return fractions.Fraction(1, 2)
def day(): return datetime.date(2026, 1, 2)
def many(): return collections.deque([1, 2])
"""


@pytest.mark.parametrize(
    "code",
    [
        "for v in (V(1, 2), V(1, 2)):\n    assert v == V(1, 2) and not v != V(1, 2) and v != (1, 2)",
        "assert V(1, 2) < V(2, 1) and abs(V(4, 5) - V(1, 1)) == 5.0 and abs(2 - 5) == 3",
        "assert half() == .5 and 0 < half() < 1 and abs(half() - .5) < 1e-9 and [half()] == [half()]",
        "from datetime import date\nassert day() == date(2026, 1, 2) and day() > date(2025, 1, 1)",
        "from collections import deque\nassert many() == deque([1, 2]) and 2 in many() and 3 not in many()",
        "assert 3 in range(5) and 2 in (n for n in [1, 2]) and 'a' in {'a': 1} and 'a' in 'abc' and 1 in {1: 2}.keys()",
        "assert type(V(1, 2)) == V and type(1) == int and type(V(1, 2)) in (V, int)",
        "x = float('nan')\nassert x != x and None is None and [] == [] and not [] == () and (1, [2]) == (1, [2])",
        "assert sorted([V(2, 0), V(1, 0)]) == [V(1, 0), V(2, 0)]",
    ],
)
def test_honest_comparisons_hold(pool: WarmPool, code: str) -> None:
    assert message(pool, HONEST, code) == ""


@pytest.mark.parametrize("name", ["sitecustomize.py", "usercustomize.py", "conftest.py", "judge.py", "builtins.py"])
def test_planted_files_change_nothing(pool: WarmPool, tmp_path: Path, name: str) -> None:
    planted = {name: "import os\nprint('PASSED', flush=True)\nos._exit(0)\n", "calc.py": "def clamp(*a): return 9\n"}
    planted |= {"x.pth": "import os; os._exit(0)\n", "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--co'\n"}
    assert run_checks(planted, [Check(name="c", code=HIDDEN)], LIMITS, pool).passed == 0
    if name == "sitecustomize.py":
        assert naively(tmp_path, planted, HIDDEN)


# looking into the runner


CLIMB = """
def climb(frame):
    while frame and "send" not in frame.f_locals: frame = frame.f_back
    return frame.f_locals["send"]
def clamp(*a):
    find()({"error": None})
    import os
    os._exit(0)
"""
WALKS = {
    "frames": """
import sys
def find(): return climb(sys._getframe())
""",
    "traceback": """
def find():
    try: 1 / 0
    except Exception as error: return climb(error.__traceback__.tb_frame)
""",
    "generator": """
def make(): yield g.gi_frame.f_back
g = make()
def find(): return climb(next(g))
""",
    "garbage": """
import gc
def find(): return next(o for o in gc.get_objects() if getattr(o, '__name__', '') == 'send')
""",
    "traceback module": """
import traceback
def find():
    try: 1 / 0
    except Exception as error: return climb(next(traceback.walk_tb(error.__traceback__))[0])
""",
    "inspect": """
import inspect
def find(): return climb(inspect.stack()[0].frame)
""",
    "logging": """
import logging
def find(): return climb(logging.currentframe())
""",
    "current frames": """
import sys
def find(): return climb(list(sys._current_frames().values())[0])
""",
    "a cached getter": """
import collections, functools, sys
sys._getframe = functools.lru_cache(None)(sys._getframe)
def find():
    collections.namedtuple('P', 'x')
    return climb(sys._getframe(1))
""",
    "the logger's own frames": """
import logging
def find():
    found = []
    logging._srcfile = 'x'
    logging._is_internal_frame = lambda frame: found.append(frame)
    logging.warning('told')
    return climb(found[0])
""",
}


@pytest.mark.parametrize("name", WALKS)
def test_who_finds_the_reporter_is_not_believed(pool: WarmPool, name: str) -> None:
    assert ": the code looked into the runner (" in message(pool, WALKS[name] + CLIMB, RAISES)


def test_a_reach_voids_later_claims_but_no_comparison_of_data(pool: WarmPool) -> None:
    source = CLAMP + "import sys\nsys._getframe()\n"
    report = verdict(pool, source, HIDDEN, "pass")
    assert report.passed == 1
    assert report.failures == [CheckFailure("c1", "pass: the code looked into the runner (sys._getframe)")]


@pytest.mark.parametrize("path", ["/proc/self/mem", "/proc/self/maps", "/dev/fd/../mem"])
def test_reading_the_process_itself_is_a_reach(pool: WarmPool, path: str) -> None:
    source = f"try: open({path!r}, 'rb')\nexcept OSError: pass\n"
    assert message(pool, source, "pass") == "pass: the code looked into the runner (open)"


def test_ctypes_is_a_reach(pool: WarmPool) -> None:
    assert message(pool, "import ctypes\n", "pass") == "pass: the code looked into the runner (import)"


def test_ctypes_is_a_reach_where_a_check_imports_it_too(pool: WarmPool) -> None:
    source = "import ctypes\ndef f(): return ctypes.c_int(3).value\n"
    assert "the code looked into the runner (import)" in message(pool, source, "import ctypes")
    report = verdict(pool, "import sys\nn = int('ctypes' in sys.modules)\n", "assert n == 0", "import ctypes")
    assert [failure.name for failure in report.failures] == ["c1"]  # not there for the code to take unseen


def test_ordinary_code_is_no_reach(pool: WarmPool) -> None:
    source = (
        "import collections, dataclasses, enum, logging, traceback, typing, unittest, asyncio, pathlib\n"
        "P = collections.namedtuple('P', 'x')\nT = typing.TypeVar('T')\nE = enum.Enum('E', 'A B')\n"
        "N = typing.NamedTuple('N', [('x', int)])\n"
        "@dataclasses.dataclass\nclass D:\n    x: int = 1\n"
        "def f():\n    logging.warning('told')\n    try: 1 / 0\n    except Exception: logging.exception('caught')\n"
        "    try: 1 / 0\n    except Exception: text = traceback.format_exc()\n"
        "    pathlib.Path('x').write_text(text); return asyncio.run(g())\n"
        "async def g(): return D(1)\n"
    )
    assert message(pool, source, "assert f() == D(1)") == ""


def test_patched_modules_are_put_back_before_a_check_uses_them(pool: WarmPool) -> None:
    source = "import math\nmath.isclose = lambda *a, **k: True\ndef f(): return 9\n"
    assert (
        message(pool, source, "import math\nassert math.isclose(f(), 3)") == "assert math.isclose(f(), 3) : got False"
    )
    source = "import sys, types\nfake = types.ModuleType('math'); fake.isclose = lambda *a: True\n"
    source += "sys.modules['math'] = fake\ndef f(): return 9\n"
    assert (
        message(pool, source, "import math\nassert math.isclose(f(), 3)") == "assert math.isclose(f(), 3) : got False"
    )


def test_what_a_check_expects_is_not_in_the_request() -> None:
    (step,) = plan("assert clamp(5, 1, 3) == 271828")
    assert "271828" not in repr(step.sent())


def test_a_literal_is_not_met_by_an_own_class_and_the_message_shows_it(pool: WarmPool) -> None:
    source = "class A:\n    def __eq__(s, o): return True\n    def __repr__(s): return 'A()'\n"
    assert message(pool, source, "assert A() == 1") == "assert A() == 1 : got A()"


def test_after_a_reach_only_what_the_code_was_not_told_is_believed(pool: WarmPool) -> None:
    source = CLAMP + "import gc\ngc.get_objects()\n"
    codes = (
        HIDDEN,
        "assert clamp(5, 1, 3) == max(1, 3)",
        "assert clamp(5, 1, 3) == 3 and True",
        "assert (1 == 1) == True",
    )
    report = verdict(pool, source, *codes)
    assert [failure.name for failure in report.failures] == ["c1", "c2", "c3"]
    assert all("looked into the runner (gc.get_objects)" in failure.message for failure in report.failures)


GARBAGE = (
    *("{}", "{'error': 5}", "{'error': {'type': 1}}", "{'reach': 5}", "[]", "7", "{'error': None, 'left': 3}"),
    *("{'error': None, 'left': [['int', 'x']]}", "{'error': None, 'left': [['nothing', 1]]}", "{1: 2}"),
)


@pytest.mark.parametrize("record", GARBAGE)
def test_a_forged_record_fails_its_check_and_does_not_stop_the_judge(record: str) -> None:
    secret = b"s" * 32
    lines = [f"{signature(secret, number, text)} {text}" for number, text in enumerate(["{'error': None}", record])]
    (judged,) = judge([plan(HIDDEN)], signed("\n".join(lines), secret), Verdict("cut short"))
    assert judged.message and len(judged.message) <= 80
