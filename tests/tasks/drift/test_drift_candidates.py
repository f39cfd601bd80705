"""Which sessions drift names, and which of them may become problems."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from tasks.curriculum.live import live_candidates, read_candidates, write_candidates
from tasks.drift.config import DEFAULT_CHECKS
from tasks.drift.named import unusual_sessions
from tasks.drift.tables import _table

CHECKS = {check.name: check for check in DEFAULT_CHECKS}


def table(**columns: list[object]) -> pd.DataFrame:
    n = len(next(iter(columns.values())))
    return _table(pd.DataFrame({"session": [f"s{place}" for place in range(n)], **columns}).to_dict("records"))


def named(check: str, reference: list[object], window: list[object]) -> list[str]:
    column = CHECKS[check].column
    return sorted(unusual_sessions(table(**{column: reference}), table(**{column: window}), [CHECKS[check]]))


def test_the_sessions_that_lie_where_the_drift_is_are_named() -> None:
    assert named("prompt_length", [*range(100, 200)], [150, 400, 101]) == ["s1", "s2"]
    assert named("tool_errors", [*range(100)], [0, 50, 99]) == ["s2"]
    assert named("success", [1.0, 1.0], [1.0, 0.0, 1.0]) == ["s1"]
    assert named("truncation", [0.0, 0.0], [1.0, 0.0]) == ["s0"]
    assert named("horizon_mix", ["short", "long"], ["long", "long", "short"]) == ["s0", "s1"]
    assert named("tool_mix", [["read"], ["edit"]], [["test", "read"], ["read"], ["test"]]) == ["s0", "s2"]
    assert named("prompt_meaning", ["fix the code", "fix a code"] * 9, ["fix the code", "bake bread"]) == ["s1"]
    assert named("prompt_length", [], [1, 2]) == []


def rows(session: str, trainable: bool, outcome: bool | None) -> list[dict[str, object]]:
    common = {"session": session, "tenant": "a", "release": "release-1", "trainable": trainable}
    said = json.dumps([{"role": "user", "content": f"ask {session}"}])
    turn = {"kind": "turn", "turn": 0, "prompt": said, "outcome": None, "metadata": "{}"}
    told = {"kind": "outcome", "turn": 1, "prompt": None, "outcome": outcome, "metadata": '{"problem_id": "p"}'}
    return [common | turn, common | told]


def test_only_sessions_of_tenants_that_opted_in_become_candidates(tmp_path: Path) -> None:
    audit = pd.DataFrame(
        [*rows("s0", True, True), *rows("s1", True, False), *rows("s2", False, False), *rows("s3", True, None)]
    )
    why = {"s0": ["turns"], "s1": ["success"], "s2": ["success"], "unknown": ["turns"]}
    found = live_candidates(audit, why, 10)
    assert [(c.session, c.outcome, c.why, c.problem_id) for c in found] == [
        ("s1", False, ("success",), "p"),
        ("s0", True, ("turns",), "p"),
    ]
    assert found[0].messages == [{"role": "user", "content": "ask s1"}]
    assert live_candidates(audit, why, 1) == found[:1]
    write_candidates(tmp_path / "candidates.jsonl", found)
    assert read_candidates(tmp_path / "candidates.jsonl") == found


def test_a_log_without_words_gives_no_candidates() -> None:
    audit = pd.DataFrame(rows("s0", True, True)).drop(columns=["prompt", "trainable"])
    assert live_candidates(audit, {"s0": ["turns"]}, 10) == []
