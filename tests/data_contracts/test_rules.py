"""Each rule: a mutated row is dropped with that rule named, and its neighbours are kept."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd
import pytest

from data_contracts.records import INFRASTRUCTURE
from data_contracts.store import frame_of
from data_contracts.validate import validate, validate_rollouts

DIGEST, OTHER = "a" * 64, "b" * 64


def set_cells(frame: pd.DataFrame, row: int, **cells: Any) -> pd.DataFrame:
    """The frame with other cells in one row; a cell of a foreign type turns its column into objects."""
    frame = frame.copy()
    for name, value in cells.items():
        column = frame[name].astype(object)
        column.iloc[row] = value
        frame[name] = column if value is not None and frame[name].dtype == object else _as_before(column, frame[name])
    return frame


def _as_before(column: pd.Series, before: pd.Series) -> pd.Series:
    try:
        return column.astype(before.dtype)
    except (TypeError, ValueError):
        return column


def turns(*parts: tuple[int, int, str]) -> str:
    """Turns of (index, completion tokens, digest) as the JSON column holds them."""
    common = {"completion": "", "finish_reason": "stop"}
    return json.dumps(
        [
            {**common, "prompt_tokens": 4 * i + 3, "index": i, "completion_tokens": n, "policy_digest": d}
            for i, n, d in parts
        ]
    )


TRAJECTORY_RULES = [
    ("passed_within_total", {"visible_passed": 2}),
    ("passed_within_total", {"hidden_passed": 3}),
    *(("status_reward_consistent", {"status": status, "rewards": "{}"}) for status in sorted(INFRASTRUCTURE)),
    ("status_reward_consistent", {"status": "engine_error", "outcome": None, "rewards": '{"outcome": 0.0}'}),
    ("outcome_matches_checks", {"outcome": True}),
    ("outcome_matches_checks", {"hidden_passed": None}),
    ("outcome_matches_checks", {"hidden_passed": 0, "hidden_total": 0}),
    ("rewards_finite", {"rewards": '{"format": NaN}'}),
    ("rewards_finite", {"rewards": '{"format": -Infinity}'}),
    ("turns.turns_in_order", {"turns": turns((0, 2, DIGEST), (2, 3, DIGEST))}),
    ("turns.turns_in_order", {"turns": turns((1, 2, DIGEST), (0, 3, DIGEST))}),
    ("turns_sum_to_sampled", {"sampled_tokens": 6}),
    ("turns_sum_to_sampled", {"turns": turns((0, 5, DIGEST), (1, 3, DIGEST))}),
    ("one_digest_per_rollout", {"turns": turns((0, 2, DIGEST), (1, 3, OTHER))}),
    (
        "one_digest_per_version",
        {"policy_digest": OTHER, "turns": turns((0, 2, OTHER), (1, 3, OTHER))},
    ),
    ("one_problem_per_group", {"problem_id": "p-9"}),
]
SEGMENT_RULES = [
    *(
        ("lengths_equal", {name: [0] * 9})
        for name in ("token_ids", "rollout_logprobs", "turn_index", "advantages", "policy_numbers")
    ),
    ("lengths_equal", {"routed_experts": [[1]] * 11}),
    ("lengths_equal", {"loss_mask": [0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0]}),
    *(("finite_logprobs", {"rollout_logprobs": [0.0] * 9 + [value]}) for value in (math.nan, math.inf, -math.inf)),
    *(("finite_logprobs", {"advantages": [0.0] * 9 + [value]}) for value in (math.nan, math.inf, -math.inf)),
    ("logprob_only_where_sampled", {"loss_mask": [0, 0, 0, 1, 1, 1, 1, 1, 1, 1], "rollout_logprobs": [-0.5] * 10}),
    ("logprob_only_where_sampled", {"rollout_logprobs": [0.0] * 3 + [0.5] + [0.0] * 6}),
    ("logprob_only_where_sampled", {"loss_mask": [0, 0, 0, 0, 1, 1, 0, 1, 1, 1]}),
    ("turn_index_never_falls", {"turn_index": [0] * 8 + [1, 0]}),
    ("segments_without_gap", {"index": 1}),
    ("routing_whole", {"routed_experts": None}),
    ("routing_whole", {"experts": None}),
    ("routing_whole", {"experts_per_token": None}),
    ("routing_whole", {"experts_per_token": 3}),
    ("routing_whole", {"routed_experts": [[0, 1, 2, 3]] * 4 + [[0, 1]] + [[0, 1, 2, 3]] * 5}),
    ("routing_whole", {"routed_experts": [[0, 1, 2, 3]] * 4 + [[]] + [[0, 1, 2, 3]] * 5}),
    ("routing_whole", {"routed_experts": [[]] * 10}),
    ("experts_in_range", {"routed_experts": [[0, 1, 2, 4]] + [[0, 1, 2, 3]] * 9}),
    ("experts_recorded", {"routed_experts": [[0, 0, 0, 0]] * 9 + [[]]}),
    ("experts_recorded", {"routed_experts": [[0]] * 9 + [[]], "experts_per_token": 1}),
    ("experts_distinct", {"routed_experts": [[0, 1, 2, 3]] * 8 + [[0, 1, 3, 3], []]}),
]
ROUTED = {"routed_experts": [[0, 1, 1, 3]] * 9 + [[]], "experts": 4, "experts_per_token": 2}
"""Of two layers: an expert may come again in another layer, and the last token has none."""
PROBLEM_RULES = [
    ("solution_files_known", {"solution": '{"other.py": ""}'}),
    ("solution_changes_files", {"files": '{"add.py": "x = 1"}', "solution": '{"add.py": "x = 1"}'}),
    ("solution_changes_files", {"solution": "{}"}),
    ("check_names_unique", {"hidden": '[{"name": "h", "code": "1"}, {"name": "h", "code": "2"}]'}),
]


def dropped(table: str, frame: pd.DataFrame, **options: Any) -> tuple[set[str], set[int | None], list[str]]:
    """(rules named, rows they were named for, ids that were kept)"""
    result = validate(table, frame, **options)
    key = "trajectory_id" if table == "segments" else "id"
    return {r.rule for r in result.rejected}, {r.row for r in result.rejected}, result.accepted[key].tolist()


@pytest.mark.parametrize(("rule", "cells"), TRAJECTORY_RULES)
def test_trajectory_rules(trajectories, rule, cells):
    frame = frame_of("trajectories", trajectories)
    kept = [f"r-{number}" for number in (0, 1, 2, 4, 5, 6, 7)]
    assert dropped("trajectories", set_cells(frame, 3, **cells)) == ({rule}, {3}, kept)


@pytest.mark.parametrize(("rule", "cells"), SEGMENT_RULES)
def test_segment_rules(segments, rule, cells):
    of_experts = rule == "routing_whole" or rule.startswith("experts_")
    frame = frame_of("segments", [one.model_copy(update=ROUTED) for one in segments] if of_experts else segments)
    kept = [f"r-{number}" for number in (0, 1, 2, 4, 5, 6, 7)]
    assert dropped("segments", set_cells(frame, 3, **cells)) == ({rule}, {3}, kept)


@pytest.mark.parametrize(("rule", "cells"), PROBLEM_RULES)
def test_problem_rules(problem, rule, cells):
    frame = frame_of("problems", [problem(f"p-{number}") for number in range(3)])
    assert dropped("problems", set_cells(frame, 1, **cells)) == ({rule}, {1}, ["p-0", "p-2"])


def test_whole_tables_hold(trajectories, segments):
    for result in validate_rollouts(frame_of("trajectories", trajectories), frame_of("segments", segments)):
        assert result.rejected == []
        assert result.skipped == ()
        assert len(result.accepted) == 8


def test_a_rollout_may_go_on_under_a_newer_version_whose_digest_is_the_one_of_all(trajectory, turn):
    newer = {"policy_version": "policy-00004", "policy_digest": OTHER}
    older = turn(0, 2, DIGEST).model_copy(update={"policy_version": "policy-00003"})
    carried = trajectory(0, **newer, turns=(older, turn(1, 3, OTHER)))
    of_both = [trajectory(1), trajectory(2), *(trajectory(n, **newer, turns=(turn(0, 5, OTHER),)) for n in (3, 4))]
    assert dropped("trajectories", frame_of("trajectories", [carried, *of_both]))[:2] == (set(), set())
    false = carried.model_copy(update={"turns": (older.model_copy(update={"policy_digest": OTHER}), turn(1, 3, OTHER))})
    assert dropped("trajectories", frame_of("trajectories", [false, *of_both]))[:2] == ({"one_digest_per_version"}, {0})


def test_versions_without_a_majority_of_one_digest_go_altogether(trajectory, turn):
    other = {"policy_digest": OTHER, "turns": (turn(0, 2, OTHER), turn(1, 3, OTHER))}
    frame = frame_of("trajectories", [trajectory(0), trajectory(1, **other), trajectory(2), trajectory(3, **other)])
    assert dropped("trajectories", frame)[:2] == ({"one_digest_per_version", "minimum_rows"}, {0, 1, 2, 3, None})


def test_an_infrastructure_ending_without_an_outcome_is_kept(trajectory):
    broken = trajectory(0, status="sandbox_error", outcome=None, hidden_passed=None, hidden_total=0, rewards={})
    frame = frame_of("trajectories", [broken, trajectory(1)])
    assert dropped("trajectories", frame) == (set(), set(), ["r-0", "r-1"])


# masks: what is trained is what was sampled


def both(trajectories: list, segments: list) -> tuple[dict[str, int], dict[str, int], list[str]]:
    whole, parts = validate_rollouts(frame_of("trajectories", trajectories), frame_of("segments", segments))
    assert whole.accepted["id"].tolist() == list(dict.fromkeys(parts.accepted["trajectory_id"]))
    return whole.counts, parts.counts, whole.accepted["id"].tolist()


def test_a_trained_template_token_costs_the_rollout(trajectories, segments, segment):
    """Seven marked positions for five sampled tokens, with log-probabilities invented for the two inserted ones."""
    segments[2] = segment(2, loss_mask=[0, 0, 0, 1, 1, 1, 1, 1, 1, 1], rollout_logprobs=[0.0] * 3 + [-0.5] * 7)
    counts, orphans, kept = both(trajectories, segments)
    assert counts == {"mask_sum_is_sampled": 1}
    assert orphans == {"belongs_to_trajectory": 1}
    assert kept == ["r-0", "r-1", "r-3", "r-4", "r-5", "r-6", "r-7"]


def test_a_sampled_token_left_out_costs_the_rollout(trajectories, segments, segment):
    mask = [0, 0, 0, 0, 1, 0, 0, 1, 1, 1]
    segments[2] = segment(2, loss_mask=mask, rollout_logprobs=[-0.5 * bit for bit in mask])
    assert both(trajectories, segments)[0] == {"mask_sum_is_sampled": 1}


def test_the_mask_is_summed_over_all_segments_of_a_rollout(trajectories, segments, segment, turn):
    first = segment(2, 0, loss_mask=[0, 0, 0, 1, 1, 0, 0, 0, 0, 0], rollout_logprobs=[0.0] * 3 + [-0.5] * 2 + [0.0] * 5)
    after_rewrite = turn(1, 3).model_copy(update={"segment": 1})
    trajectories[2] = trajectories[2].model_copy(update={"turns": (turn(0, 2), after_rewrite)})
    second = segment(2, 1, loss_mask=[0] * 7 + [1] * 3, rollout_logprobs=[0.0] * 7 + [-0.5] * 3)
    segments[2:3] = [first, second]
    assert both(trajectories, segments) == ({}, {}, [f"r-{number}" for number in range(8)])
    segments.remove(second)
    assert both(trajectories, segments)[0] == {"mask_sum_is_sampled": 1}
    segments[2] = second
    counts, orphans, _ = both(trajectories, segments)
    assert counts == {"has_segment": 1}
    assert orphans == {"segments_without_gap": 1}


def test_a_rollout_without_segment(trajectories, segments, trajectory):
    del segments[5]
    assert both(trajectories, segments)[0] == {"has_segment": 1}
    trajectories[5] = trajectory(
        5, status="engine_error", turns=(), sampled_tokens=0, outcome=None, hidden_passed=None, rewards={}
    )
    whole, _ = validate_rollouts(frame_of("trajectories", trajectories), frame_of("segments", segments))
    assert whole.rejected == []


def test_a_dropped_segment_takes_its_rollout_along(trajectories, segments):
    frame = set_cells(frame_of("segments", segments), 4, rollout_logprobs=[-math.inf] * 10)
    whole, parts = validate_rollouts(frame_of("trajectories", trajectories), frame)
    assert parts.counts == {"finite_logprobs": 1}
    assert whole.counts == {"has_segment": 1}
    assert whole.rejected[0].key == "r-4"


def test_segments_that_are_none_cost_everything(trajectories):
    whole, parts = validate_rollouts(frame_of("trajectories", trajectories), frame_of("segments", []))
    assert whole.counts == {"has_segment": 8, "minimum_rows": 1}
    assert parts.counts == {"minimum_rows": 1}
