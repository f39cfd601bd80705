"""Verified progress turn by turn, by real checks in a real sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from data_contracts.records import Check, Limits, Problem, Turn
from tasks.reward.config import RewardConfig
from tasks.reward.progress import Progress, states
from tasks.reward.verify import verify_all
from tasks.rollout.sandbox import WarmPool

NONE = "def double(x):\n    return x + 7\n"
HALF = "def double(x):\n    return x + 2\n"
WHOLE = "def double(x):\n    return x * 2\n"
PROBLEM = Problem(
    id="p",
    prompt="repair double",
    files={"double.py": NONE},
    visible=(Check(name="three", code="assert double(3) == 6"),),
    hidden=(Check(name="two", code="assert double(2) == 4"), Check(name="five", code="assert double(5) == 10")),
    solution={"double.py": WHOLE},
    limits=Limits(seconds=1.0),
)


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(2, name="verifier") as pool:
        yield pool


def turns(*sources: str | None) -> tuple[Turn, ...]:
    """Turns that leave `double.py` like this; None: one that changes nothing."""
    return tuple(
        Turn(
            index=i,
            completion="",
            completion_tokens=1,
            prompt_tokens=1,
            finish_reason="stop",
            policy_digest="d",
            changed={} if source is None else {"double.py": source},
        )
        for i, source in enumerate(sources)
    )


def test_each_turn_has_what_it_added_to_the_checks_that_pass(make_trajectory, pool):
    made = make_trajectory(outcome=None, files={"double.py": HALF}, turns=turns(None, HALF, WHOLE, HALF))
    (verified,) = verify_all([made], {"p": PROBLEM}, pool, RewardConfig(), by_turn=True)
    assert [turn.progress for turn in verified.turns] == [0.0, 0.5, 0.5, -0.5]
    assert (verified.hidden_passed, verified.outcome) == (1, False)
    (plain,) = verify_all([made], {"p": PROBLEM}, pool, RewardConfig())
    assert [turn.progress for turn in plain.turns] == [None] * 4
    assert plain.outcome is False


def test_equal_files_are_judged_once(make_trajectory, pool):
    class Counting:
        def __init__(self) -> None:
            self.runs = 0

        def __getattr__(self, name):
            self.runs += 1
            return getattr(pool, name)

    counting = Counting()
    progress = Progress(counting)
    made = make_trajectory(outcome=None, turns=turns(HALF, NONE, HALF))
    assert [turn.progress for turn in progress.of(made, PROBLEM)] == [0.5, -0.5, 0.5]
    once = counting.runs
    assert [turn.progress for turn in progress.of(made, PROBLEM)] == [0.5, -0.5, 0.5]
    assert once > 0
    assert counting.runs == once


def test_files_come_change_and_go():
    first, second = turns(HALF, None)
    second = second.model_copy(update={"changed": {"double.py": None, "new.py": "x = 1\n"}})
    assert list(states({"double.py": NONE, "a.txt": "a"}, (first, second))) == [
        {"double.py": HALF, "a.txt": "a"},
        {"a.txt": "a", "new.py": "x = 1\n"},
    ]
