"""Arms compared on the same problems: rates, intervals and paired differences over seeds."""

from __future__ import annotations

import pytest

from tasks.evaluation.ablation import Point, compare_arms, tokens_to


def point(make, arm: str, seed: int, share: float, outcomes: list[bool | None]) -> Point:
    made = [
        make(f"p{i}", 1, outcome=outcome, **({"status": "tool_error"} if outcome is None else {}))
        for i, outcome in enumerate(outcomes)
    ]
    return Point(arm=arm, seed=seed, share=share, tokens=1000 + seed, trajectories=tuple(made))


def test_differences_are_paired_within_a_seed_and_pooled_over_seeds(make_trajectory):
    points = [
        point(make_trajectory, "outcome", 0, 1.0, [False, False, True, True]),
        point(make_trajectory, "outcome", 1, 1.0, [False, True, True, None]),
        point(make_trajectory, "td", 0, 1.0, [True, True, True, True]),
        point(make_trajectory, "td", 1, 1.0, [True, True, True, True]),
    ]
    rows = {(row.arm, row.horizon): row for row in compare_arms(points, "outcome")}
    base, td = rows["outcome", "all"], rows["td", "all"]
    assert (base.n, base.rate, base.against, base.tokens, base.seeds) == (7, pytest.approx(4 / 7), None, 1000.5, 2)
    assert (td.n, td.rate) == (8, 1.0)
    assert td.against is not None
    assert (td.against.pairs, td.against.problems, td.against.gained, td.against.lost) == (7, 7, 3, 0)
    assert td.against.difference == pytest.approx(3 / 7)
    assert td.against.low < 3 / 7 < td.against.high
    assert ("td", "medium") not in rows, "a horizon without rollouts has no row"


def test_only_the_end_is_compared_and_a_seed_without_its_reference_is_not(make_trajectory):
    points = [point(make_trajectory, "outcome", 0, share, [False, True]) for share in (0.0, 1.0)] + [
        point(make_trajectory, "process", seed, share, [True, True]) for seed in (0, 1) for share in (0.0, 1.0)
    ]
    rows = [row for row in compare_arms(points, "outcome") if row.arm == "process" and row.horizon == "all"]
    assert [(row.share, row.against is None, row.seeds) for row in rows] == [(0.0, True, 2), (1.0, False, 2)]
    assert rows[1].against is not None
    assert rows[1].against.pairs == 2


def test_tokens_to_a_level_are_read_off_a_straight_line_between_measurements(make_trajectory):
    def at(seed: int, share: float, tokens: int, passed: int) -> Point:
        outcomes = [True] * passed + [False] * (4 - passed)
        return point(make_trajectory, "signal", seed, share, outcomes).model_copy(update={"tokens": tokens})

    points = [at(0, 0.0, 0, 1), at(0, 0.5, 1000, 2), at(0, 1.0, 3000, 4)]  # .5 at 1,000 and 1 at 3,000: .75 at 2,000
    points += [at(1, 0.0, 0, 1), at(1, 1.0, 3000, 2)]
    assert tokens_to(points, "signal", "all", 0.75) == [2000.0, None]
    assert tokens_to(points, "signal", "all", 0.25) == [0.0, 0.0]
    assert tokens_to(points, "signal", "medium", 0.25) == [None, None]
