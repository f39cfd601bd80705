"""Real traffic read from an audit log: when a session has ended, what it was, and what a client may say about it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.canary.audit import AuditLog, AuditRow, read_audit
from tasks.canary.config import LIVE_METRICS
from tasks.canary.observed import Observed, Pair, observe
from tasks.canary.sessions import metric_value

START = datetime(2026, 11, 30, 23, 59, tzinfo=UTC)
PAIR, IDLE = Pair("release-1", "release-2"), timedelta(minutes=10)


def row(session: str, kind: str = "turn", **changes: Any) -> AuditRow:
    fields: dict[str, Any] = {"release": "release-1", "arm": "champion", "digest": "d", "turn": 0}
    if kind == "turn":
        fields |= {"prompt_tokens": 30, "completion_tokens": 7, "latency": 0.5}
    return AuditRow.model_validate({"kind": kind, "session": session} | fields | changes)


def seen(folder: Path, *rows: tuple[float, AuditRow], minutes: float = 60.0) -> Observed:
    """What is seen so many minutes after START of rows that were written at theirs, over the end of a day."""
    with AuditLog(folder) as log:
        for at, written in sorted(rows, key=lambda item: item[0]):
            log.append(written, START + timedelta(minutes=at))
    now = START + timedelta(minutes=minutes)
    return observe(read_audit(folder), PAIR, since=START, now=now, idle=IDLE)


def test_a_session_ends_with_its_outcome_or_by_silence(tmp_path: Path) -> None:
    rows = [
        (0, row("told")), (2, row("told", turn=1)), (3, row("told", "outcome", outcome=True)),
        (1, row("silent")), (25, row("talking")), (4, row("other", release="release-9")),
    ]  # fmt: skip
    found = seen(tmp_path, *rows, minutes=30)
    assert [(s.session, s.status, s.outcome, s.turns) for s in found.sessions] == [
        ("told", "completed", True, 2),
        ("silent", "completed", None, 1),
    ]
    told = found.sessions[0]
    assert (told.tokens, told.prompt_tokens, told.latency, told.problem_id, told.horizon) == (14, 30, 1.0, None, None)
    assert found.last == START + timedelta(minutes=25)


def test_what_began_before_the_canary_says_nothing(tmp_path: Path) -> None:
    rows = [(-5, row("early")), (1, row("early", turn=1)), (2, row("early", "outcome", outcome=False))]
    assert seen(tmp_path, *rows).sessions == []


def test_what_a_client_told_is_taken_when_it_makes_sense(tmp_path: Path) -> None:
    good = {"horizon": "long", "problem_id": "p", "status": "out_of_turns", "tool_errors": 3, "refused": True,
            "cost": 0.25, "reward": -1.5}  # fmt: skip
    bad = {"horizon": 7, "problem_id": [], "status": "dead", "tool_errors": -1, "refused": "no", "cost": "x",
           "reward": True}  # fmt: skip
    rows = [
        (at, written)
        for at, (name, said) in enumerate((("good", good), ("bad", bad)))
        for written in (row(name, call_errors=1), row(name, "outcome", outcome=None, metadata=said))
    ]
    first, second = seen(tmp_path, *rows).sessions
    assert (first.horizon, first.problem_id, first.status, first.tool_errors) == ("long", "p", "out_of_turns", 3)
    assert (first.refused, first.cost, first.reward, first.outcome) == (True, 0.25, -1.5, None)
    assert (second.horizon, second.problem_id, second.status, second.tool_errors) == (None, None, "completed", 1)
    assert (second.refused, second.cost, second.reward) == (None, None, None)


@pytest.mark.parametrize(
    ("last", "status", "errors"),
    [("ok", "completed", 0.0), ("engine_error", "engine_error", 1.0), ("timeout", "engine_error", 1.0),
     ("context_length_exceeded", "out_of_tokens", 0.0)],
)  # fmt: skip
def test_a_last_turn_without_an_answer_is_how_it_ended(tmp_path: Path, last: str, status: str, errors: float) -> None:
    lost = {} if last == "ok" else {"status": last, "prompt_tokens": None, "completion_tokens": None}
    [session] = seen(tmp_path, (0, row("s")), (1, row("s", turn=1, **lost))).sessions
    assert (session.status, metric_value(session, "errors")) == (status, errors)


def test_a_shadow_is_a_session_of_the_candidates_that_ends_with_the_champions(tmp_path: Path) -> None:
    shadow = {"release": "release-2", "arm": "candidate", "shadow": True, "call_errors": 2}
    rows = [
        (0, row("s")), (0.1, row("s", **shadow)), (1, row("s", "outcome", outcome=True, metadata={"tool_errors": 5})),
    ]  # fmt: skip
    champion, copy = sorted(seen(tmp_path, *rows, minutes=2).sessions, key=lambda s: s.shadow)
    assert (champion.arm, champion.outcome, champion.tool_errors) == ("champion", True, 0), "calls alone are compared"
    assert (copy.arm, copy.outcome, copy.tool_errors, copy.release) == ("candidate", None, 2, "release-2")
    figures = {metric.name: metric_value(copy, metric.name) for metric in LIVE_METRICS}
    assert {name for name, value in figures.items() if value is not None} == {"errors", "tool_errors"}


told = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from(["horizon", "status", "reward", "cost", "refused", "tool_errors"]), told))
def test_whatever_a_client_tells_is_a_session(said: dict[str, Any]) -> None:
    told_so = {"metadata": json.dumps(said), "outcome": True}
    rows = [row("s").model_dump(), row("s", "outcome").model_dump() | told_so]
    audit = pd.DataFrame([line | {"ts": START} for line in rows])
    [session] = observe(audit, PAIR, since=START, now=START, idle=IDLE).sessions
    assert session.outcome is True and session.tool_errors >= 0
    assert all(isinstance(metric_value(session, m.name), float | None) for m in LIVE_METRICS)
