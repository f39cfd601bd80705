"""Checks are judged rightly, told shortly, and cannot be passed by anything but the right answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_contracts.records import Check, Limits
from tasks.rollout._check_plain import decode, encode
from tasks.rollout._check_plan import modules_of
from tasks.rollout._check_verdict import show
from tasks.rollout._parse import literal
from tasks.rollout.checks import CheckFailure, CheckReport, run_checks
from tasks.rollout.sandbox import WarmPool

LIMITS = Limits(seconds=20, memory_mb=128)
CLAMP = "def clamp(x, low, high):\n    return min(max(x, low), high)\n"
WRONG = "def clamp(x, low, high):\n    return max(x, low)\n"


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(size=1, name="verifier") as warm:
        yield warm


def verdict(pool: WarmPool, source: str, *codes: str, limits: Limits = LIMITS) -> CheckReport:
    checks = [Check(name=f"c{number}", code=code) for number, code in enumerate(codes)]
    return run_checks({"calc.py": source}, checks, limits, pool)


def message(pool: WarmPool, source: str, code: str) -> str:
    """The one failure's message, "" where the check passes."""
    report = verdict(pool, source, code)
    assert (report.passed, report.total) == (1 - len(report.failures), 1)
    return report.failures[0].message if report.failures else ""


# verdicts and messages


def test_passed_and_failed_are_counted_with_the_value_got(pool: WarmPool) -> None:
    report = verdict(
        pool, WRONG, "assert clamp(2, 1, 3) == 2", "assert clamp(5, 1, 3) == 3", "assert clamp(0, 1, 3) == 1"
    )
    assert report == CheckReport(2, 3, [CheckFailure("c1", "assert clamp(5, 1, 3) == 3 : got 5")], "exit")
    codes = ("assert clamp(2, 1, 3) == 2", "assert clamp(5, 1, 3) == 3")
    assert verdict(pool, CLAMP, *codes) == CheckReport(2, 2, [], "exit")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("assert f(2) == 2", ""),
        ("assert f(2) != 2", "assert f(2) != 2 : got 2"),
        ("assert 3 == f(2)", "assert 3 == f(2) : got 2"),
        ("assert 1 < f(2)", ""),
        ("assert 2 < f(2)", "assert 2 < f(2) : got 2"),
        ("assert f(2) in (1, 2)", ""),
        ("assert 2 in f([1, 2])", ""),
        ("assert 2 not in f([1, 2])", "assert 2 not in f([1, 2]) : got [1, 2]"),
        ("assert f(None) is None", ""),
        ("assert f(0) is None", "assert f(0) is None : got 0"),
        ("assert f(1) == True", ""),
        ("assert f(1) is not True", ""),
        ("assert f([])", "assert f([]) : got []"),
        ("assert not f([1])", "assert not f([1]) : got [1]"),
        ("assert not f([])", ""),
        ("assert f(1) == f(1)", ""),
        ("assert f(1) == f(2)", "assert f(1) == f(2) : got 1"),
        ("assert 0 <= f(1) <= 3", ""),
        ("assert 0 <= f(5) <= 3", "assert 0 <= f(5) <= 3 : got False"),
        ("assert isinstance(f(1), int) and f(2)", ""),
        ("assert f({'b', 'a'}) == {'c'}", "assert f({'b', 'a'}) == {'c'} : got {'a', 'b'}"),
        ("assert f(1.5) == 1.5 and f((1,)) == (1,)", ""),
        ("assert f(float('inf')) == float('inf')", ""),
        ("assert f(10**400) == 10**400", ""),
        ("assert f(b'a') == b'a'", ""),
        ("assert f(1+2j) == 1+2j", ""),
        ("assert f((1, [2, {3: {4}}])) == (1, [2, {3: {4}}])", ""),
        ("assert f('1') < 2", "f('1') < 2: TypeError: '<' not supported between instances of 'str' and 'int'"),
        ("x = [3, 1]; x.sort(); assert f(x) == [1, 3]", ""),
        ("x = f(3)\ny = x + 1\nassert y == 5", "assert y == 5 : got 4"),
        ("for n in range(3):\n    assert f(n) == n", ""),
        ("for n in range(3):\n    assert f(n) == 0", "assert f(n) == 0 : got 1"),
        ("assert f(1) == 2, 'told'", "assert f(1) == 2 : got 1"),
        ("def g():\n    assert f(1) == 2, 'told'\ng()", "g(): AssertionError: told"),
        ("f(1)['a']", "f(1)['a']: TypeError: 'int' object is not subscriptable"),
        ("assert f() == 1", "f() == 1: TypeError: f() missing 1 required positional argument: 'x'"),
        ("assert g(1) == 1", "g(1) == 1: NameError: name 'g' is not defined"),
        ("try:\n    f(1 / 0)\nexcept ZeroDivisionError:\n    pass\nelse:\n    raise AssertionError('no error')", ""),
        (
            "try:\n    f(1)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError('no')",
            "try: f(1) except ValueError: pass else: raise AssertionEr...: AssertionError: no",
        ),
        ("import calc\nassert calc.f(1) == 1", ""),
        ("from calc import f as h\nassert h(1) == 1", ""),
        ("import math\nassert math.isclose(f(.1) + .2, .3)", ""),
        ("assert f(object()) == 1", "assert f(object()) == 1 : got <object object>"),
        ("raise SystemExit(0)", "raise SystemExit(0): SystemExit: 0"),
        ("assert f(1) ==", "the check's own code: SyntaxError: invalid syntax (line 1)"),
    ],
)
def test_each_form_of_check(pool: WarmPool, code: str, expected: str) -> None:
    assert message(pool, "def f(x):\n    return x\n", code) == expected


def test_messages_have_at_most_80_characters_and_keep_both_ends(pool: WarmPool) -> None:
    source = "def f(x):\n    return 'y' * x\n"
    text = message(pool, source, f"assert f(500) == {'z' * 200!r}")
    assert len(text) == 80
    assert text.startswith("assert f(500) == 'zzz") and " : got 'yyyy" in text and text.endswith("...")


def test_checks_see_private_names_and_what_all_leaves_out(pool: WarmPool) -> None:
    source = "__all__ = ['g']\ndef _f(x):\n    return x\ndef h(x):\n    return x\n"
    assert verdict(pool, source, "assert _f(2) == 2", "assert h(3) == 3").passed == 2


def test_files_of_a_package_are_modules_whose_names_checks_see(pool: WarmPool) -> None:
    files = {
        "pkg/__init__.py": "a = 1",
        "pkg/part.py": "from pkg import a\nb = a + 1",
        "top.py": "c = 3",
        "note.txt": "x",
    }
    assert modules_of(files) == ["pkg", "pkg.part", "top"]
    code = "import pkg.part\nassert (a, b, c, pkg.part.b) == (1, 2, 3, 2)\nassert open('note.txt').read() == 'x'"
    assert run_checks(files, [Check(name="c", code=code)], LIMITS, pool).failures == []


def test_a_module_may_bear_a_standard_modules_name(pool: WarmPool) -> None:
    code = "import statistics\nassert statistics.mean([1, 2]) == 'mine'"
    assert run_checks(
        {"statistics.py": "def mean(x): return 'mine'"}, [Check(name="c", code=code)], LIMITS, pool
    ) == CheckReport(1, 1)


def test_plain_subclasses_compare_as_their_base_does(pool: WarmPool) -> None:
    source = (
        "import collections, enum\n"
        "P = collections.namedtuple('P', 'x y')\n"
        "class E(enum.IntEnum):\n    A = 3\n"
        "class S(str, enum.Enum):\n    A = 'a'\n"
        "def d():\n    x = collections.defaultdict(int)\n    x['a'] += 1\n    return x\n"
    )
    code = "assert P(1, 2) == (1, 2)\nassert E.A == 3\nassert S.A == 'a'\nassert d() == {'a': 1}"
    code += "\nassert collections.Counter('aab') == {'a': 2, 'b': 1}\nassert d().keys() == {'a'}"
    assert message(pool, source, code) == ""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1\ndef f(:\n    pass\n", "calc.py, line 2: SyntaxError: invalid syntax"),
        ("x = 1\n\n1 / 0\n", "calc.py, line 3: ZeroDivisionError: division by zero"),
        ("def g():\n    import nothing\ng()\n", "calc.py, line 2: ModuleNotFoundError: No module named 'nothing'"),
        ("import sys\nsys.exit(0)\n", "calc.py, line 2: SystemExit: 0"),
        ("raise KeyboardInterrupt\n", "calc.py, line 1: KeyboardInterrupt: "),
        ("import os\nos._exit(0)\n", "import: the process ended early with exit code 0"),
        ("def f(): return f()\nf()\n", "calc.py, line 1: RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_a_module_that_does_not_import_fails_every_check_with_its_line(
    pool: WarmPool, source: str, expected: str
) -> None:
    report = verdict(pool, source, "assert 1 == 1", "pass")
    assert [failure.message for failure in report.failures] == [expected, expected]
    assert report.passed == 0


# limits


def test_an_endless_loop_fails_its_check_and_those_it_leaves_no_time_for(pool: WarmPool) -> None:
    source = CLAMP + "def loop():\n    while True: pass\n"
    codes = ("assert clamp(1, 0, 2) == 1", "assert loop() == 1", "assert clamp(1, 0, 2) == 1")
    report = verdict(pool, source, *codes, limits=Limits(seconds=1.5))
    assert (report.passed, report.ended) == (1, "timeout")
    assert [failure.message for failure in report.failures] == [
        "loop() == 1: timed out after 1.5 s",
        "not run: the 1.5 s for all checks are used up",
    ]


def test_an_endless_module_fails_all(pool: WarmPool) -> None:
    report = verdict(pool, "while True: pass", "pass", "pass", limits=Limits(seconds=1.0))
    assert (report.passed, report.ended) == (0, "timeout")
    assert [failure.message for failure in report.failures] == ["import: timed out after 1 s"] * 2


def test_a_memory_hog_fails_its_check_alone(pool: WarmPool) -> None:
    source = CLAMP + "def hog():\n    return len(bytearray(10**9))\n"
    report = verdict(pool, source, "assert hog() == 10**9", "assert clamp(1, 0, 2) == 1")
    assert (report.passed, report.ended) == (1, "memory")
    assert report.failures == [CheckFailure("c0", "hog() == 10**9: MemoryError")]


def test_deep_recursion_and_giant_values_fail_their_check_alone(pool: WarmPool) -> None:
    source = CLAMP + "def deep():\n    return deep()\ndef big():\n    return 'x' * 10**6\ndef nest():\n    x = []\n"
    source += (
        "    for _ in range(10**5): x = [x]\n    return x\ndef ring():\n    x = []\n    x.append(x)\n    return x\n"
    )
    codes = (
        "deep()",
        "assert big() == 'x'",
        "assert nest() == []",
        "assert ring() == []",
        "assert clamp(1, 0, 2) == 1",
    )
    report = verdict(pool, source, *codes)
    assert report.passed == 1
    messages = [failure.message for failure in report.failures]
    assert messages[0] == "deep(): RecursionError: maximum recursion depth exceeded"
    assert messages[1] == "big() == 'x': more than 262144 bytes were written"
    assert messages[3] == "assert ring() == [] : got [[...]]"


def test_printing_is_no_matter(pool: WarmPool) -> None:
    source = "def f():\n    for _ in range(10**4): print('x' * 1000)\n    return 1\n"
    assert message(pool, source, "assert f() == 1") == ""


def test_a_crash_costs_only_its_check(pool: WarmPool) -> None:
    source = CLAMP + "import os\ndef bye():\n    os._exit(0)\ndef die():\n    os.kill(os.getpid(), 11)\n"
    codes = ("assert clamp(1, 0, 2) == 1", "bye()", "assert clamp(1, 0, 2) == 1", "die()", "assert clamp(1, 0, 2) == 1")
    report = verdict(pool, source, *codes)
    assert (report.passed, report.ended) == (3, "exit")
    assert [failure.message for failure in report.failures] == [
        "bye(): the process ended early with exit code 0",
        "die(): the process ended early with exit code -11",
    ]


def test_stop_at_first_tells_one_failure(pool: WarmPool) -> None:
    codes = ["assert clamp(1, 0, 2) == 1", "assert clamp(5, 1, 3) == 3", "assert clamp(1, 0, 2) == 1"]
    checks = [Check(name=str(number), code=code) for number, code in enumerate(codes)]
    report = run_checks({"calc.py": WRONG}, checks, LIMITS, pool, stop_at_first=True)
    assert report == CheckReport(1, 3, [CheckFailure("1", "assert clamp(5, 1, 3) == 3 : got 5")])


def test_no_checks_is_nothing_passed(pool: WarmPool) -> None:
    assert verdict(pool, CLAMP) == CheckReport(0, 0)


def test_checks_have_names_of_their_own(pool: WarmPool) -> None:
    assert verdict(pool, CLAMP, "clamp = y = 1", "assert clamp(9, 0, 2) == 2", "assert y == 1").passed == 2


def test_verdicts_do_not_differ_from_run_to_run(pool: WarmPool) -> None:
    source = "import random\ndef f(): return {'a', 'b', 'c'}, random.random(), object()\n"
    first = [verdict(pool, source, "assert f() == 1", "assert f()[:2] == 1") for _ in range(3)]
    with WarmPool(size=1, name="other") as other:
        first.append(verdict(other, source, "assert f() == 1", "assert f()[:2] == 1"))
    assert all(report == first[0] for report in first)
    assert len(first[0].failures) == 2


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.integers() | st.text(), inner)
        | st.frozensets(st.integers() | st.text())
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(PLAIN)
def test_plain_data_survives_the_pipe(value: object) -> None:
    returned = decode(literal(ascii(encode(value))))
    assert show(returned) == show(value)
    assert type(returned) is type(value)
