"""Column checks, whole-table verdicts, and what a check that saw nothing may say."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pandera.errors import SchemaErrors

from data_contracts import suites
from data_contracts.contract import FOLDER, load_contract, parse_contract
from data_contracts.gates import Verdict
from data_contracts.store import frame_of, records_of
from data_contracts.validate import expect, validate


def mutated(frame: pd.DataFrame, row: int, column: str, value: object) -> pd.DataFrame:
    frame = frame.copy()
    cells = frame[column].astype(object)
    cells.iloc[row] = value
    frame[column] = cells
    return frame


BAD_CELLS = [
    ("id", None, "id.required"),
    ("id", 7, "id.type"),
    ("id", "", "id.minLength"),
    ("id", "r-0", "id.unique"),
    ("horizon", "huge", "horizon.validValues"),
    ("status", "COMPLETED", "status.validValues"),
    ("sampled_tokens", 1.9, "sampled_tokens.type"),
    ("sampled_tokens", "5", "sampled_tokens.type"),
    ("sampled_tokens", True, "sampled_tokens.type"),
    ("sampled_tokens", None, "sampled_tokens.required"),
    ("sampled_tokens", -1, "sampled_tokens.minimum"),
    ("visible_passed", -1, "visible_passed.minimum"),
    ("submitted", 1, "submitted.type"),
    ("outcome", "yes", "outcome.type"),
    ("seconds", math.nan, "seconds.required"),
    ("seconds", math.inf, "seconds.finite"),
    ("seconds", -math.inf, "seconds.finite"),
    ("seconds", -0.1, "seconds.minimum"),
    ("turns", "[", "turns.json"),
    ("turns", "[1]", "turns.json"),
    ("turns", '[{"index": 0}]', "turns.json"),
    ("rewards", "3", "rewards.json"),
    ("rewards", '{"format": "1"}', "rewards.json"),
    ("sampling", '{"temperatur": 1.0}', "sampling.json"),
    ("files", '{"a.py": null}', "files.json"),
    ("prompt_ids", [1, -1], "prompt_ids.items.minimum"),
    ("prompt_ids", [1, 1.5], "prompt_ids.type"),
    ("prompt_ids", np.array([1.0, 2.0]), "prompt_ids.type"),
    ("prompt_ids", [None], "prompt_ids.type"),
    ("prompt_ids", 3, "prompt_ids.type"),
    ("prompt_ids", [2**31], "prompt_ids.items.maximum"),
    ("sampled_tokens", 2**63, "sampled_tokens.type"),
    ("id", ["r-3"], "id.type"),
    ("turns", "[" * 100_000, "turns.json"),
]


@pytest.mark.parametrize(("column", "value", "rule"), BAD_CELLS)
def test_a_bad_cell_costs_its_row_and_no_other(trajectories, column, value, rule):
    result = validate("trajectories", mutated(frame_of("trajectories", trajectories), 3, column, value))
    assert rule in {rejection.rule for rejection in result.rejected}
    assert {rejection.row for rejection in result.rejected} == {3}
    assert result.accepted["id"].tolist() == [f"r-{n}" for n in (0, 1, 2, 4, 5, 6, 7)]
    assert result.dropped == 1
    assert all(column in rejection.reason for rejection in result.rejected if rejection.rule == rule)


@pytest.mark.parametrize("table", ["segments", "trajectories"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_of_any_column_may_be_infinite_or_nan(table, value, trajectories, segments):
    frame = frame_of(table, segments if table == "segments" else trajectories)
    for column in load_contract(table).columns:
        array = column.items is not None and column.items.logical_type == "number"
        if array or column.logical_type == "number":
            result = validate(table, mutated(frame, 2, column.name, [value] * 10 if array else value))
            assert {rejection.row for rejection in result.rejected} == {2}, column.name


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("loss_mask", [2] * 10, "loss_mask.items.maximum"),
        ("loss_mask", [-1] * 10, "loss_mask.items.minimum"),
        ("loss_mask", [True] * 10, "loss_mask.type"),
        ("token_ids", [], "token_ids.minItems"),
        ("token_ids", None, "token_ids.required"),
        ("token_ids", "0123456789", "token_ids.type"),
        ("rollout_logprobs", ["0"] * 10, "rollout_logprobs.type"),
        ("rollout_logprobs", [0.0] * 9 + [None], "rollout_logprobs.type"),
        ("rollout_logprobs", None, "rollout_logprobs.required"),
        ("routed_experts", [1] * 10, "routed_experts.type"),
        ("routed_experts", [[0.5]] * 10, "routed_experts.type"),
        ("routed_experts", [[0, 1], [-1]] * 5, "routed_experts.items.minimum"),
        ("trajectory_id", ["r-0"], "trajectory_id.type"),
        ("trajectory_id", "r-0", "trajectory_id+index.unique"),
    ],
)
def test_bad_token_columns(segments, column, value, rule):
    result = validate("segments", mutated(frame_of("segments", segments), 3, column, value))
    assert rule in {rejection.rule for rejection in result.rejected}
    assert {rejection.row for rejection in result.rejected} == {3}


def test_a_duplicate_is_dropped_and_the_first_is_kept(trajectories):
    result = validate("trajectories", frame_of("trajectories", [*trajectories, trajectories[2]]))
    assert [(r.row, r.key, r.rule) for r in result.rejected] == [(8, "r-2", "id.unique")]
    assert records_of("trajectories", result.accepted) == trajectories


def test_rows_that_break_several_rules_are_named_for_each(trajectories):
    frame = mutated(mutated(frame_of("trajectories", trajectories), 1, "status", "lost"), 1, "seconds", -1.0)
    result = validate("trajectories", frame)
    assert result.counts == {"status.validValues": 1, "seconds.minimum": 1}
    assert result.dropped == 1


# a bad row is seen though the schema is right, an empty table is no valid table, -inf is no small number


def test_a_right_schema_is_not_a_right_row(trajectories):
    frame = frame_of("trajectories", trajectories)
    wrong = frame.copy()
    wrong.loc[3, "sampled_tokens"] = -5
    assert wrong.dtypes.equals(frame.dtypes)
    assert validate("trajectories", wrong).counts == {"sampled_tokens.minimum": 1}
    assert validate("trajectories", wrong).gate().verdict is Verdict.FAIL
    assert expect("trajectories", wrong).failed == ["sampled_tokens: expect_column_values_to_be_between"]


@pytest.mark.parametrize("table", ["problems", "trajectories", "segments"])
def test_an_empty_table_never_passes(table):
    empty = frame_of(table, [])
    result = validate(table, empty)
    assert [(r.row, r.rule, r.reason) for r in result.rejected] == [
        (None, "minimum_rows", "0 valid rows, 1 are needed")
    ]
    assert result.gate().verdict is Verdict.INCONCLUSIVE
    report = expect(table, empty)
    assert (report.passed, report.failed) == (False, ["table: expect_table_row_count_to_be_between"])
    assert report.gate().verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan])
def test_expectations_refuse_what_is_not_finite(trajectories, value):
    frame = frame_of("trajectories", trajectories)
    frame.loc[3, "seconds"] = value
    kind = "not_be_null" if math.isnan(value) else "be_between"
    report = expect("trajectories", frame)
    assert (report.passed, report.failed) == (False, [f"seconds: expect_column_values_to_{kind}"])
    frame["seconds"] = value
    assert not expect("trajectories", frame).passed


@pytest.mark.parametrize(
    ("value", "kind", "checks"),
    [
        (-math.inf, "be_between", {"finite"}),
        (math.inf, "be_between", {"finite", "maximum"}),
        (math.nan, "not_be_null", {"not_nullable"}),
    ],
)
def test_an_upper_bound_that_stands_alone_refuses_what_is_not_finite(
    trajectories, tmp_path, monkeypatch, value, kind, checks
):
    text = (FOLDER / "trajectories.odcs.yaml").read_text()
    *_, start = text.partition("- name: seconds")
    (tmp_path / "bounded.odcs.yaml").write_text(text.replace(start, start.replace("{minimum: 0}", "{maximum: 10}", 1)))
    bounded = parse_contract(tmp_path / "bounded.odcs.yaml")
    monkeypatch.setattr(suites, "load_contract", lambda table: bounded)
    frame = frame_of("trajectories", trajectories)
    assert suites.evaluate(f"bounded by {value}", frame, ()).failed == []
    assert len(bounded.pandera().validate(frame)) == 8
    frame.loc[3, "seconds"] = value
    assert suites.evaluate(f"bounded by {value}", frame, ()).failed == [f"seconds: expect_column_values_to_{kind}"]
    with pytest.raises(SchemaErrors) as found:
        bounded.pandera().validate(frame, lazy=True)
    assert set(found.value.failure_cases["index"]) == {3}
    assert set(found.value.failure_cases["check"]) == checks


def test_expectations_of_a_whole_batch(trajectories, segments):
    for table, records in (("trajectories", trajectories), ("segments", segments)):
        frame = frame_of(table, records)
        report = expect(table, frame)
        assert (report.passed, report.failed, report.rows) == (True, [], 8)
        assert report.evaluated == len(load_contract(table).expectations().expectations) >= 8
        assert report.gate().verdict is Verdict.PASS
        lacking = expect(table, frame.drop(columns=load_contract(table).key[0]))
        assert "table: expect_table_columns_to_match_set" in lacking.failed
        assert lacking.gate().verdict is Verdict.FAIL


def test_minimum_rows_counts_valid_rows(trajectories):
    frame = mutated(frame_of("trajectories", trajectories), 0, "id", None)
    assert validate("trajectories", frame, minimum_rows=7).counts == {"id.required": 1}
    few = validate("trajectories", frame, minimum_rows=8)
    assert few.rejected[-1].reason == "7 valid rows, 8 are needed"
    assert few.rejected[-1].row is None


def test_a_missing_or_unknown_column_costs_every_row(trajectories):
    frame = frame_of("trajectories", trajectories)
    missing = validate("trajectories", frame.drop(columns="status"))
    assert missing.counts == {"status.column_missing": 9, "minimum_rows": 1}
    assert missing.accepted.empty and list(missing.accepted.columns) == list(frame.columns)
    unknown = validate("trajectories", frame.assign(extra=1))
    assert unknown.counts == {"extra.column_unknown": 9, "minimum_rows": 1}
    assert unknown.gate().verdict is Verdict.FAIL
    nameless = validate("segments", pd.DataFrame({"x": [1]}))
    assert nameless.rejected[-2].key == "row 0"


def test_rules_that_were_not_asked_are_no_pass(trajectories, segments):
    frame = frame_of("trajectories", trajectories)
    alone = validate("trajectories", frame)
    assert alone.skipped == ("has_segment", "mask_sum_is_sampled", "turns.prefix_property")
    assert alone.gate().verdict is Verdict.INCONCLUSIVE
    whole = validate("trajectories", frame, companions={"segments": frame_of("segments", segments)})
    assert whole.skipped == ()
    assert whole.gate().verdict is Verdict.PASS


def test_the_gate_allows_a_share_of_dropped_rows(trajectories, segments):
    frame = mutated(frame_of("trajectories", trajectories), 0, "detail", 3)
    result = validate("trajectories", frame, companions={"segments": frame_of("segments", segments)})
    assert result.gate(max_dropped_share=0.125).verdict is Verdict.PASS
    gate = result.gate(max_dropped_share=0.12)
    assert gate.verdict is Verdict.FAIL
    assert gate.evidence == {"rows": 8, "dropped": 1, "detail.type": 1}


def test_the_frame_given_is_not_changed(trajectories):
    frame = mutated(frame_of("trajectories", trajectories), 0, "detail", 3)
    before = frame.copy(deep=True)
    validate("trajectories", frame)
    pd.testing.assert_frame_equal(frame, before)


JUNK = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), value=JUNK)
def test_any_junk_in_any_cell_leaves_only_rows_that_make_records(trajectories, data, value):
    frame = frame_of("trajectories", trajectories)
    column = data.draw(st.sampled_from(list(frame.columns)))
    result = validate("trajectories", mutated(frame, 3, column, value))
    assert len(records_of("trajectories", result.accepted)) == 8 - result.dropped
    assert {f"r-{n}" for n in (0, 1, 2, 4, 5, 6, 7)} <= set(result.accepted["id"])
