"""How a rollout failed: each rule on a session that a person would name the same."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.records import ToolCall, Trajectory, Turn
from tasks.curriculum.failures import FAILURES, MEANS, failure_of

FILES = {"main.py": "a\n"}
READ, TEST = ("read", {}), ("test", {})


def edit(text: str) -> tuple[str, dict[str, Any]]:
    return "edit", {"line": 1, "text": text}


Call = tuple[str, dict[str, Any]]
Seen = tuple[int, int] | None


def session(make: Any, *calls: Call, seen: list[Seen], **changes: Any) -> Trajectory:
    """A failed session of one call a turn; `seen`: what its visible checks said after each turn."""
    turns = tuple(
        Turn(
            index=number,
            completion="",
            completion_tokens=1,
            prompt_tokens=1,
            finish_reason="stop",
            calls=(ToolCall(name=name, arguments=arguments),),
            policy_digest="d",
            visible=visible,
            changed={"main.py": arguments["text"] + "\n"} if name == "edit" else {},
        )
        for number, ((name, arguments), visible) in enumerate(zip(calls, seen, strict=True))
    )
    return make(outcome=False, turns=turns, **({"submitted": True} | changes))


@pytest.mark.parametrize(
    "calls, seen, changes, kind",
    [
        ([READ, edit("b"), TEST], [None, None, (3, 3)], {}, "wrong_edit"),
        ([READ, edit("b"), TEST], [None, None, (1, 3)], {}, "gave_up"),
        ([READ, TEST], [None, (0, 3)], {}, "gave_up"),
        ([READ], [None], {}, "gave_up"),
        ([READ, edit("b")], [None, None], {}, "untested"),
        ([edit("b"), TEST], [None, (3, 3)], {}, "never_read"),
        ([READ, edit("b"), TEST], [None, None, (1, 3)], {"submitted": False, "status": "out_of_turns"}, "ran_out"),
        ([READ, TEST, READ, READ], [None, (0, 3), (0, 3), (0, 3)], {}, "looped"),
        ([READ, edit("b"), edit("a"), edit("c"), edit("a")], [None] * 5, {}, "looped"),
        ([READ, edit("b"), edit("b"), edit("b")], [None] * 4, {"submitted": False, "status": "out_of_turns"}, "looped"),
        ([READ, TEST, edit("b"), TEST, edit("c"), TEST], [None, *[(0, 3)] * 5], {}, "gave_up"),
    ],
)
def test_each_kind(make_trajectory: Any, calls: Any, seen: Any, changes: Any, kind: str) -> None:
    assert failure_of(session(make_trajectory, *calls, seen=seen, **changes), FILES) == kind


def test_without_a_call_it_never_acted(make_trajectory: Any) -> None:
    assert failure_of(make_trajectory(outcome=False), FILES) == "never_acted"


def test_what_did_not_fail_or_says_nothing_is_no_failure(make_trajectory: Any) -> None:
    assert failure_of(make_trajectory(outcome=True), FILES) is None
    assert failure_of(make_trajectory(outcome=None, status="sandbox_error"), FILES) is None


def test_every_kind_is_explained() -> None:
    assert tuple(MEANS) == FAILURES
