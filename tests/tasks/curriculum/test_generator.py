"""The generator: seeded, split by normalised source, and every bug is told by visible and by hidden checks."""

import ast

from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.curriculum.generator import generate, normalise, side_of
from tasks.curriculum.generator.bugs import bugs_of
from tasks.curriculum.generator.problems import FILE, SIZES, apply
from tasks.curriculum.generator.split import functions_in


def passes(source: str, code: str) -> bool:
    namespace: dict = {}
    exec(source, namespace)
    try:
        exec(code, namespace)
    except Exception:  # whatever a check raises, it has failed
        return False
    return True


def test_normalise_forgets_names_docstrings_and_layout() -> None:
    first = 'def get_a(xs):\n    """Doc."""\n    t = 0\n    for x in xs:\n        t += x  # add\n    return t\n'
    second = "def sum_b(row):\n    s=0\n    for v in row:\n        s += v\n    return s\n"
    assert normalise(first) == normalise(second)
    assert normalise(first) != normalise(second.replace("+=", "-="))
    assert "len" in normalise("def f(x):\n    return len(x)\n")


def test_no_problems_asked_for_are_none() -> None:
    assert generate(3, "train", "short", 0) == []


def test_same_seed_same_problems() -> None:
    assert generate(3, "train", "medium", 5) == generate(3, "train", "medium", 5)
    assert generate(3, "train", "short", 5) != generate(4, "train", "short", 5)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["train", "heldout"]), st.sampled_from(["short", "medium", "long"]))
def test_problems_keep_to_their_side_and_size(seed, split, horizon) -> None:
    for problem in generate(seed, split, horizon, 3):
        functions = functions_in(problem.files[FILE]) + functions_in(problem.solution[FILE])
        assert {side_of(function) for function in functions} == {split}
        before, after = problem.files[FILE].splitlines(), problem.solution[FILE].splitlines()
        assert sum(a != b for a, b in zip(before, after, strict=True)) == SIZES[horizon].bugs
        assert len(functions) == 2 * SIZES[horizon].functions


def test_visible_and_hidden_checks_differ_and_both_tell_the_bug() -> None:
    for problem in generate(11, "train", "short", 40):
        visible, hidden = ([c.code for c in checks] for checks in (problem.visible, problem.hidden))
        assert not set(visible) & set(hidden)
        assert all(passes(problem.solution[FILE], code) for code in visible + hidden)
        terminating = "while" not in problem.files[FILE]
        if terminating:
            assert not all(passes(problem.files[FILE], code) for code in visible)
            assert not all(passes(problem.files[FILE], code) for code in hidden)


def test_no_heldout_function_occurs_in_training() -> None:
    train = {normalise(f) for p in generate(1, "train", "short", 300) for f in functions_in(p.files[FILE])}
    heldout = {normalise(f) for p in generate(2, "heldout", "short", 100) for f in functions_in(p.solution[FILE])}
    assert len(train) > 250 and len(heldout) > 90
    assert not train & heldout


def test_bugs_change_one_line_below_the_docstring() -> None:
    source = 'def f(xs):\n    """Doc."""\n    s = 1\n    for x in xs:\n        s += x * 2\n    return s\n'
    kinds = {bug.kind for bug in bugs_of(source)}
    assert kinds == {"operator", "constant", "variable"}
    for bug in bugs_of(source):
        ast.parse(apply(source, bug))
        pairs = zip(source.splitlines(), apply(source, bug).splitlines(), strict=True)
        changed = [i for i, (right, wrong) in enumerate(pairs) if right != wrong]
        assert changed == [bug.line] and bug.line >= 2
