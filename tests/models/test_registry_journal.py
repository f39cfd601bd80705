"""The registry's journal: torn lines, order, and the stack of champions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.registry_journal import Journal, Kind, Move, champions, pending


def a_move(number: int, kind: Kind = "promote", to: int | None = 1, state: str = "done") -> Move:
    return Move.model_validate(
        {"id": str(number), "kind": kind, "from_version": None, "to_version": to, "who": "me", "why": "better",
         "at": "2026-01-01T00:00:00.000+00:00", "state": state}
    )  # fmt: skip


def test_last_event_of_each_move_is_its_state(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "j.jsonl")
    assert journal.moves() == []
    for number, events in enumerate([("intent", "applied", "done"), ("intent", "undone"), ("intent", "applied")]):
        for event in events:
            journal.append(a_move(number, to=number + 1), event)  # type: ignore[arg-type]
    moves = journal.moves()
    assert [(move.to_version, move.state) for move in moves] == [(1, "done"), (2, "undone"), (3, "applied")]
    assert [move.id for move in pending(moves)] == ["2"]


def test_torn_last_line_is_dropped_and_overwritten(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    journal.append(a_move(0), "intent")
    whole = journal.path.read_bytes()
    for cut in range(1, len(whole)):
        journal.path.write_bytes(whole + whole[:cut])
        if whole[:cut].endswith(b"\n"):
            continue
        assert len(journal.moves()) == 1
        journal.append(a_move(0), "done")
        assert [move.state for move in journal.moves()] == ["done"]
        assert journal.path.read_bytes().startswith(whole)


def test_broken_line_in_the_middle_names_the_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    journal.append(a_move(0), "intent")
    journal.path.write_bytes(journal.path.read_bytes() + b"{oops\n")
    journal.append(a_move(0), "done")
    with pytest.raises(RuntimeError, match=r"j\.jsonl:2 is no JSON: restore the file"):
        journal.moves()


def test_rollback_pops_and_never_returns_to_what_it_left() -> None:
    moves = [a_move(0, to=1), a_move(1, to=2), a_move(2, to=3), a_move(3, "rollback", 2)]
    assert champions(moves) == [1, 2]
    assert champions([*moves, a_move(4, "rollback", 1)]) == [1]
    assert champions([*moves, a_move(4, to=4)]) == [1, 2, 4]
    assert champions([*moves, a_move(4, to=9, state="undone"), a_move(5, to=9, state="intent")]) == [1, 2]
    assert champions([a_move(0, to=1), a_move(1, to=2), a_move(2, to=1)]) == [1, 2, 1]


def test_a_quarantine_goes_back_like_a_rollback_only_where_it_moves_the_champion() -> None:
    up = [a_move(0, to=1), a_move(1, to=2)]
    moved = a_move(2, "quarantine", 1).model_copy(update={"from_version": 2, "release": 2})
    stayed = a_move(3, "quarantine", 2).model_copy(update={"from_version": 2, "release": 7})
    assert champions([*up, moved]) == [1] and champions([*up, stayed]) == [1, 2]
    assert moved.concerns(1) and moved.concerns(2) and stayed.concerns(7) and not stayed.concerns(2)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=12))
def test_the_last_champion_is_where_the_last_done_move_went(steps: list[tuple[bool, int]]) -> None:
    moves = [a_move(i, "rollback" if back else "promote", to) for i, (back, to) in enumerate(steps)]
    stack = champions(moves)
    assert (stack[-1] if stack else None) == (moves[-1].to_version if moves else None)
