"""Tool calls of turns, as a thread runs them: one session's alone, or those of several sessions as one batch.

(session, its calls) of each turn -> batches -> answered: per session what its calls came back with, and when
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

from data_contracts.records import ToolCall
from tasks.rollout.environments.base import Batched, Session, ToolResult

T = TypeVar("T")


class Asked(NamedTuple):
    """The calls of one turn."""

    session: Session
    calls: Sequence[ToolCall]
    batched: Batched | None = None
    """The session again, where it takes calls together with others'."""


class Answered(NamedTuple):
    """What a call came back with, and the seconds it took; of a batch, those of the whole batch."""

    result: ToolResult
    seconds: float


def batches(turns: Sequence[T], asked_of: Callable[[T], Asked]) -> list[list[T]]:
    """Turns whose calls go together, in the order of each batch's first; a session that batches nothing is alone."""
    found: dict[Hashable, list[T]] = {}
    for place, turn in enumerate(turns):
        batched = asked_of(turn).batched
        key: Hashable = ("batch", batched.batch) if batched is not None else place
        found.setdefault(key, []).append(turn)
    return list(found.values())


def answer(batch: Sequence[Asked]) -> list[list[Answered]]:
    """Run the calls of a batch, a session's one after another until one is done; per session what came back."""
    answers: list[list[Answered]] = [[] for _ in batch]
    place = 0
    while going := [n for n, asked in enumerate(batch) if place < len(asked.calls) and not _ended(answers[n])]:
        started = time.perf_counter()
        results = _results(batch[0].batched, [(batch[n].session, batch[n].calls[place]) for n in going])
        seconds = time.perf_counter() - started
        for n, result in zip(going, results, strict=True):
            answers[n].append(Answered(result, seconds))
        place += 1
    return answers


def run_calls(session: Session, calls: Sequence[ToolCall]) -> list[Answered]:
    """The calls of one session's turn."""
    return answer([Asked(session, calls, batched(session))])[0]


def batched(session: Session) -> Batched | None:
    """The session where it takes calls together with others'. Ask once a session: the look costs as much as a parse."""
    return session if isinstance(session, Batched) else None


def _ended(answered: Sequence[Answered]) -> bool:
    return bool(answered) and answered[-1].result.done


def _results(first: Batched | None, calls: Sequence[tuple[Session, ToolCall]]) -> Sequence[ToolResult]:
    if first is not None:
        return first.call_together(calls)
    return [session.call(call) for session, call in calls]
