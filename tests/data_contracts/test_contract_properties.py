"""For each contract: generated valid tables pass; a row that breaks a rule is dropped with that rule named, alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_contracts.contract import TABLES, load_contract
from data_contracts.validate import validate

QUICK = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
DIGEST, OTHER = "a" * 64, "b" * 64
Row = dict[str, Any]
NAME = st.text(alphabet="abcdefgh_-.", min_size=1, max_size=12)
COUNT = st.integers(0, 500)
NESTED = ("calls", "answers", "changed", "visible", "origins")


@st.composite
def turn_rows(draw: st.DrawFn, rollout: str) -> list[Row]:
    """Turns of one rollout; the context is rewritten now and then."""
    rows: list[Row] = []
    context, segment = draw(st.integers(1, 50)), 0
    for index in range(draw(st.integers(1, 4))):
        if index and draw(st.booleans()):
            context, segment = draw(st.integers(1, 50)), segment + 1
        calls, text = draw(st.integers(0, 2)), draw(st.text(max_size=8))
        answers = sorted(draw(st.lists(st.integers(0, len(text)), max_size=calls)))
        passed = draw(st.none() | st.integers(0, 3))
        sampled = draw(st.integers(0, 20))
        rows.append(
            {
                **{"trajectory_id": rollout, "index": index, "completion": draw(st.text(max_size=8))},
                **{"completion_tokens": sampled, "prompt_tokens": context, "observation": text},
                "finish_reason": draw(st.sampled_from(["stop", "length"])),
                "calls": json.dumps([{"name": "edit", "arguments": {"n": 1}}] * calls),
                "call_errors": draw(st.lists(st.text(max_size=4), max_size=2)),
                "answers": json.dumps([{"end": end} for end in answers]),
                **{"tool_failed": draw(st.booleans()), "policy_version": "", "policy_digest": DIGEST},
                **{"sample_seconds": draw(st.floats(0, 9)), "tool_seconds": 0.0, "changed": '{"a.py": null}'},
                "visible": None if passed is None else json.dumps([passed, 3]),
                "progress": draw(st.none() | st.floats(-1, 1)),
                **{"purpose": draw(st.sampled_from(["work", "summary"])), "segment": segment},
                **{"cached_tokens": draw(st.integers(0, context)), "origins": '{"prompt": 3}', "prompt_kept": True},
            }
        )
        context += sampled + draw(st.integers(0, 9))
    return rows


@st.composite
def trajectory_row(draw: st.DrawFn, number: int) -> Row:
    turns = draw(turn_rows("-"))
    nested = [
        {
            **{name: cell for name, cell in turn.items() if name != "trajectory_id"},
            **{
                n: json.loads(turn[n]) if turn[n] else None
                for n in ("calls", "answers", "changed", "visible", "origins")
            },
        }
        for turn in turns
    ]
    total = draw(st.integers(1, 5))
    passed = draw(st.integers(0, total))
    return {
        **{"id": f"r-{number}", "run_id": "run", "iteration": draw(COUNT), "problem_id": f"p-{number // 3}"},
        **{"horizon": draw(st.sampled_from(["short", "medium", "long"])), "group_id": f"g-{number // 3}"},
        **{"rollout_index": draw(COUNT), "policy_version": "policy-00001", "policy_digest": DIGEST},
        **{"status": draw(st.sampled_from(["completed", "out_of_turns", "out_of_tokens"])), "detail": ""},
        "sampling": json.dumps({"temperature": 1.0, "seed": draw(COUNT)}),
        "turns": json.dumps(nested),
        "prompt_ids": draw(st.lists(st.integers(0, 2**31 - 1), max_size=5)),
        "sampled_tokens": sum(turn["completion_tokens"] for turn in turns),
        **dict.fromkeys(("context_tokens", "malformed_calls", "tool_errors"), draw(COUNT)),
        **{"submitted": draw(st.booleans()), "files": json.dumps({draw(NAME): draw(st.text(max_size=9))})},
        **{"visible_passed": draw(st.none() | st.just(1)), "visible_total": 2},
        **{"hidden_passed": passed, "hidden_total": total, "outcome": passed == total},
        "rewards": json.dumps({"outcome": float(passed == total), "format": draw(st.floats(-1, 1))}),
        "seconds": draw(st.floats(0, 1e6)),
    }


@st.composite
def segment_row(draw: st.DrawFn, number: int) -> Row:
    """A segment, with the experts of its tokens and the versions that sampled them, or without."""
    size = draw(st.integers(2, 12))
    mask = draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))
    routed = draw(st.booleans())
    experts = [draw(st.permutations([0, 1, 2, 3]))[:2] for _ in range(size - 1)]
    return {
        **{"trajectory_id": f"r-{number}", "index": 0, "loss_mask": mask},
        "token_ids": draw(st.lists(st.integers(0, 2**31 - 1), min_size=size, max_size=size)),
        "rollout_logprobs": [bit * draw(st.floats(-20, 0)) for bit in mask],
        "turn_index": sorted(draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))),
        "advantages": draw(st.none() | st.lists(st.floats(-9, 9), min_size=size, max_size=size)),
        "routed_experts": [*experts, []] if routed else None,
        **({"experts": 4, "experts_per_token": 2} if routed else {"experts": None, "experts_per_token": None}),
        "policy_numbers": [7 if bit else -1 for bit in mask] if draw(st.booleans()) else None,
    }


@st.composite
def problem_row(draw: st.DrawFn, number: int) -> Row:
    path, text = draw(NAME.filter(lambda name: ".." not in name)) + "x", draw(st.text(max_size=9))
    checks = [{"name": f"c{index}", "code": "assert True"} for index in range(draw(st.integers(1, 3)))]
    return {
        **{"id": f"p-{number}", "prompt": draw(st.text(min_size=1, max_size=9)), "files": json.dumps({path: text})},
        **{"visible": json.dumps(checks[1:]), "hidden": json.dumps(checks)},
        **{"solution": json.dumps({path: text + "."}), "limits": json.dumps({"turns": draw(st.integers(1, 9))})},
        **{"horizon": "medium", "tags": draw(st.lists(NAME, max_size=2)), "environment": "repair"},
        **{"hidden_files": "{}", "control": "{}", "protected": [], "programs": draw(st.lists(NAME, max_size=2))},
        "origin": draw(st.none() | st.just('{"taskset": "t", "data": {}}')),
    }


@st.composite
def audit_row(draw: st.DrawFn, number: int) -> Row:
    turn = draw(st.booleans())
    tokens = draw(st.integers(1, 99))
    return {
        **{"event": f"e-{number}", "kind": "turn" if turn else "outcome", "tenant": "local", "session": draw(NAME)},
        "ts": datetime(2026, 12, 1, tzinfo=UTC) + timedelta(seconds=number),
        **{"release": "release-1", "arm": draw(st.sampled_from(["champion", "candidate"])), "stage": draw(COUNT)},
        **{"shadow": False, "trainable": draw(st.booleans()), "digest": DIGEST, "turn": draw(COUNT), "status": "ok"},
        **{"prompt_tokens": tokens, "cached_tokens": draw(st.none() | st.integers(0, tokens))},
        **{"completion_tokens": draw(COUNT), "finish_reason": "stop", "tool_calls": draw(st.lists(NAME, max_size=2))},
        **{"call_errors": 0, "latency": draw(st.floats(0, 60)), "outcome": None if turn else draw(st.booleans())},
        **{"metadata": '{"horizon": "short"}', "prompt": '[{"role": "user", "content": "é"}]'},
        **{"completion": draw(st.none() | st.just('{"role": "assistant"}')), "seq": number},
        "hash": hashlib.sha256(str(number).encode()).hexdigest(),
    }


def component(digest: str = DIGEST) -> Row:
    files = {"adapter.safetensors": digest}
    content = hashlib.sha256("".join(f"{name}\0{value}\n" for name, value in files.items()).encode()).hexdigest()
    common = {"model": "m", "version": 1, "digest": digest, "stored": "copied", "source": "models:/m/1"}
    return {**common, "content": content, "path": None, "file": None, "files": files}


@st.composite
def release_row(draw: st.DrawFn, number: int) -> Row:
    parts = ["base", "policy", *(["reward"] if draw(st.booleans()) else [])]
    return {
        **{"name": "agent", "key": hashlib.sha256(str(number).encode()).hexdigest(), "run_id": draw(NAME)},
        **{"created": "2026-12-01T02:13:36+00:00", "policy_version": "policy-00003"},
        **{"components": json.dumps({part: component() for part in parts}), "datasets": '{"train": "d"}'},
        **{"contract_versions": '{"segments": "1.3.0"}', "recipe": "{}", "code_revision": "abc"},
        "evidence": json.dumps([{"name": "g", "verdict": "PASS", "reason": draw(st.text(max_size=5))}]),
    }


@st.composite
def turn_row(draw: st.DrawFn, number: int) -> Row:
    return draw(turn_rows(f"r-{number}"))[0]


MAKERS: dict[str, Callable[[int], st.SearchStrategy[Row]]] = {
    "problems": problem_row,
    "trajectories": trajectory_row,
    "turns": turn_row,
    "segments": segment_row,
    "audit": audit_row,
    "releases": release_row,
}


@st.composite
def rows_of(draw: st.DrawFn, table: str, at_least: int = 1) -> list[Row]:
    return [draw(MAKERS[table](number)) for number in range(draw(st.integers(at_least, at_least + 3)))]


def frame(rows: list[Row]) -> pd.DataFrame:
    return pd.DataFrame(rows, dtype=object)


@pytest.mark.parametrize("table", TABLES)
@QUICK
@given(data=st.data())
def test_generated_valid_tables_pass(table, data):
    rows = data.draw(rows_of(table))
    result = validate(table, frame(rows))
    assert result.rejected == []
    assert len(result.accepted) == len(rows)


@QUICK
@given(rows=st.integers(1, 3).flatmap(lambda n: st.tuples(*(turn_rows(f"r-{number}") for number in range(n)))))
def test_whole_rollouts_of_turns_pass(rows):
    assert validate("turns", frame([turn for rollout in rows for turn in rollout])).rejected == []


ROUTED = {"token_ids": [1] * 3, "loss_mask": [0, 1, 1], "rollout_logprobs": [0.0, -1.0, -1.0], "turn_index": [0, 0, 0]}
ROUTED |= {"advantages": None, "policy_numbers": None, "experts": 4, "experts_per_token": 2}
TWICE = json.dumps([{"name": "g", "verdict": "PASS", "reason": ""}] * 2)
BREAKS: list[tuple[str, str, Row]] = [
    ("problems", "solution_files_known", {"solution": '{"other/file": "1"}'}),
    ("problems", "solution_changes_files", {"files": '{"a": "1"}', "solution": '{"a": "1"}'}),
    ("problems", "check_names_unique", {"hidden": '[{"name": "h", "code": "1"}, {"name": "h", "code": "2"}]'}),
    ("problems", "paths_stay_inside", {"control": '{"../a": "1"}'}),
    ("problems", "paths_stay_inside", {"hidden_files": '{"/a": "1"}'}),
    ("trajectories", "passed_within_total", {"visible_passed": 3}),
    ("trajectories", "status_reward_consistent", {"status": "engine_error"}),
    ("trajectories", "outcome_matches_checks", {"hidden_passed": None, "outcome": True}),
    ("trajectories", "rewards_finite", {"rewards": '{"format": Infinity}'}),
    ("trajectories", "turns_sum_to_sampled", {"sampled_tokens": 10_000}),
    ("trajectories", "one_digest_per_rollout", {"policy_digest": OTHER}),
    ("trajectories", "one_problem_per_group", {"problem_id": "p-9"}),
    ("turns", "turns_in_order", {"index": 1}),
    ("turns", "cached_within_prompt", {"cached_tokens": 10_000}),
    ("turns", "answers_within_calls", {"calls": "[]", "answers": '[{"end": 0}]'}),
    ("turns", "answers_within_calls", {"calls": '[{"name": "a"}]', "answers": '[{"end": 99}]'}),
    ("turns", "visible_within_total", {"visible": "[4, 3]"}),
    ("segments", "lengths_equal", {"token_ids": [1]}),
    ("segments", "finite_logprobs", {**ROUTED, "rollout_logprobs": [0.0, float("-inf"), -1.0], "routed_experts": None}),
    ("segments", "logprob_only_where_sampled", {**ROUTED, "loss_mask": [0, 0, 1], "routed_experts": None}),
    ("segments", "turn_index_never_falls", {**ROUTED, "turn_index": [0, 1, 0], "routed_experts": None}),
    ("segments", "versions_where_sampled", {**ROUTED, "policy_numbers": [1, 1, 1], "routed_experts": None}),
    ("segments", "routing_whole", {**ROUTED, "routed_experts": None}),
    ("segments", "experts_in_range", {**ROUTED, "routed_experts": [[0, 4], [1, 2], []]}),
    ("segments", "experts_recorded", {**ROUTED, "routed_experts": [[0, 0], [0, 0], []]}),
    ("segments", "experts_distinct", {**ROUTED, "routed_experts": [[1, 1], [1, 2], []]}),
    ("segments", "segments_without_gap", {"index": 1}),
    ("audit", "served_turn_is_measured", {"kind": "turn", "outcome": None, "latency": None}),
    ("audit", "cached_within_prompt", {"cached_tokens": 100_000}),
    ("audit", "outcome_of_sessions_alone", {"kind": "turn", "outcome": True}),
    ("audit", "shadow_is_candidate", {"shadow": True, "arm": "champion"}),
    ("audit", "one_digest_per_release", {"digest": OTHER}),
    ("releases", "base_and_policy_pinned", {"components": json.dumps({"base": component()})}),
    ("releases", "components_whole", {"components": json.dumps({"base": component(), "policy": {"model": "m"}})}),
    (
        "releases",
        "content_covers_files",
        {"components": json.dumps({"base": component(), "policy": {**component(), "content": OTHER}})},
    ),
    ("releases", "contracts_have_versions", {"contract_versions": '{"segments": "newest"}'}),
    ("releases", "evidence_named_once", {"evidence": TWICE}),
]
SEEN_IN_COMPANY = {"one_digest_per_version", "segment_never_falls", "context_grows", "prefix_property"}
"""Broken in a test of their own, or in `test_rules.py`: more than one row, or another table, takes part."""
SEEN_IN_COMPANY |= {"has_segment", "mask_sum_is_sampled", "belongs_to_trajectory"}


def test_every_rule_is_broken():
    rules = {(table, rule.name) for table in TABLES for rule in load_contract(table).rules}
    assert {(table, name) for table, name in rules if name not in SEEN_IN_COMPANY} == {
        (table, rule) for table, rule, _ in BREAKS
    }


@pytest.mark.parametrize(("table", "rule", "cells"), BREAKS, ids=lambda value: value if isinstance(value, str) else "")
@settings(QUICK, max_examples=4)
@given(data=st.data())
def test_a_row_that_breaks_a_rule_is_dropped_with_it_named_and_its_neighbours_are_kept(table, rule, cells, data):
    rows = data.draw(rows_of(table, at_least=3))
    broken = data.draw(st.integers(0, 2))
    rows[broken] = {**rows[broken], **cells}
    result = validate(table, frame(rows))
    assert [(rejection.row, rejection.rule) for rejection in result.rejected] == [(broken, rule)]
    key = load_contract(table).key
    kept = [tuple(row[name] for name in key) for number, row in enumerate(rows) if number != broken]
    assert list(result.accepted[key].itertuples(index=False, name=None)) == kept


@settings(QUICK, max_examples=10)
@given(data=st.data())
def test_a_broken_turn_costs_its_rollout_with_the_turns_rule_named(data):
    rows = data.draw(rows_of("trajectories", at_least=3))
    turns = json.loads(rows[1]["turns"])
    turns[-1]["cached_tokens"] = turns[-1]["prompt_tokens"] + 1
    rows[1]["turns"] = json.dumps(turns)
    result = validate("trajectories", frame(rows))
    assert [(rejection.row, rejection.rule) for rejection in result.rejected] == [(1, "turns.cached_within_prompt")]


@pytest.mark.parametrize(
    ("rule", "cells"),
    [("segment_never_falls", {"segment": 0}), ("context_grows", {"prompt_tokens": 11, "segment": 1})],
)
@settings(QUICK, max_examples=5)
@given(data=st.data())
def test_turns_that_do_not_follow_the_one_before(rule, cells, data):
    first = {**data.draw(turn_row(0)), "prompt_tokens": 10, "completion_tokens": 5, "segment": 1, "cached_tokens": 0}
    rows = [first, {**first, "index": 1, "prompt_tokens": 20}, data.draw(turn_row(1))]
    assert validate("turns", frame(rows)).rejected == []
    rows[1] |= cells
    result = validate("turns", frame(rows))
    assert [(rejection.row, rejection.rule) for rejection in result.rejected] == [(1, rule)]
