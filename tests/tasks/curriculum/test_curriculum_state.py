from __future__ import annotations

import pytest

from data_contracts.records import Check, Problem
from tasks.curriculum.config import CurriculumConfig
from tasks.curriculum.posterior import belief, prior_rate, success_rate
from tasks.curriculum.state import CurriculumState, ProblemOutcome, group_signal, outcomes_of, update

CONFIG = CurriculumConfig(prior_strength=4, problem_forgetting=0.5, level_forgetting=0.25)


def problem(name: str, horizon: str = "short", tags: tuple[str, ...] = ()) -> Problem:
    check = (Check(name="c", code="assert 0"),)
    files = {"m.py": ""}
    return Problem(
        id=name, prompt="p", files=files, visible=check, hidden=check, solution=files, horizon=horizon, tags=tags
    )


def outcome(name: str, passed: int, failed: int, horizon: str = "short", tags: tuple[str, ...] = ()) -> ProblemOutcome:
    return ProblemOutcome(problem_id=name, horizon=horizon, tags=tags, passed=passed, failed=failed)


def test_an_unseen_problem_without_any_evidence_is_even():
    assert belief(CurriculumState(), problem("a"), 0, CONFIG) == (2.0, 2.0)


def test_counts_are_added_and_forgotten():
    state = update(CurriculumState(), [outcome("a", 6, 2)], 0, CONFIG)
    record = state.problems["a"]
    assert (record.tally.passed, record.tally.failed, record.tried, record.last_rate) == (6, 2, 8, 0.75)
    later = update(state, [outcome("a", 0, 8)], 2, CONFIG)
    assert (later.problems["a"].tally.passed, later.problems["a"].tally.failed) == (1.5, 8.5)
    assert (later.problems["a"].tried, later.problems["a"].last_rate, later.problems["a"].last_iteration) == (16, 0, 2)
    assert later.levels["short"].passed == 6 * 0.25**2
    assert state.problems["a"].tally.passed == 6


def test_the_posterior_is_prior_plus_own_counts():
    state = update(CurriculumState(), [outcome("a", 6, 2)], 0, CONFIG)
    # Horizon at iteration 0: (1 + 6) / (2 + 8) = .7, worth four rollouts; own counts 6 and 2.
    assert belief(state, problem("a"), 0, CONFIG) == pytest.approx((2.8 + 6, 1.2 + 2))
    # One iteration on: own counts halved, the horizon's quartered.
    prior = (1 + 1.5) / (2 + 2)
    assert belief(state, problem("a"), 1, CONFIG) == pytest.approx((4 * prior + 3, 4 * (1 - prior) + 1))


def test_unseen_problems_learn_from_their_tags():
    state = update(
        CurriculumState(), [outcome("a", 8, 0, tags=("easy",)), outcome("b", 0, 8, tags=("hard",))], 0, CONFIG
    )
    rates = [prior_rate(state, problem("new", tags=(tag,)), 0, CONFIG) for tag in ("easy", "hard", "unknown")]
    assert rates == pytest.approx([10 / 12, 2 / 12, 0.5])
    both = prior_rate(state, problem("new", tags=("easy", "hard")), 0, CONFIG)
    assert both == pytest.approx(0.5)
    assert prior_rate(state, problem("new", "medium", ("easy",)), 0, CONFIG) == 0.5


def test_the_success_rate_starts_at_nothing():
    assert success_rate(CurriculumState(), "short", 0, CONFIG) == 0
    state = update(CurriculumState(), [outcome("a", 6, 2)], 0, CONFIG)
    assert success_rate(state, "short", 0, CONFIG) == pytest.approx(6 / 12)


def test_an_iteration_counts_once():
    state = update(CurriculumState(), [outcome("a", 1, 1)], 3, CONFIG)
    with pytest.raises(ValueError, match="iteration 3 was counted already"):
        update(state, [outcome("a", 1, 1)], 3, CONFIG)


def test_outcomes_leave_the_unscorable_out(make_trajectory):
    rollouts = [make_trajectory("a", i, outcome=i == 0) for i in range(3)]
    rollouts += [make_trajectory("a", 3, outcome=None, status="engine_error"), make_trajectory("b", 0, outcome=False)]
    rollouts += [make_trajectory("lost", 0, outcome=None, status="cancelled")]
    pool = {name: problem(name, tags=("t",)) for name in ("a", "b", "lost")}
    found = outcomes_of(rollouts, pool)
    assert [(o.problem_id, o.passed, o.failed, o.tags, o.tokens) for o in found] == [
        ("a", 1, 2, ("t",), 3), ("b", 0, 1, ("t",), 1)
    ]  # fmt: skip
    assert [o.failures for o in found] == [{"never_acted": 2}, {"never_acted": 1}]


def test_groups_without_both_outcomes_are_counted():
    signal = group_signal([outcome("a", 1, 2), outcome("b", 0, 3), outcome("c", 3, 0), outcome("d", 2, 2)])
    assert (signal.groups, signal.mixed, signal.all_passed, signal.all_failed) == (4, 2, 1, 1)


def test_the_state_round_trips_through_json():
    state = update(CurriculumState(), [outcome("a", 1, 2, tags=("t",)), outcome("b", 3, 0, "medium")], 5, CONFIG)
    assert CurriculumState.model_validate_json(state.model_dump_json()) == state


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"low": 0.9, "high": 0.2}, "band is empty"),
        ({"unseen_share": 0.8, "replay_share": 0.4}, "exceed"),
        ({"step_from": 0.9, "step_full": 0.5}, "step_full"),
        ({"lowest": 0.1}, "lowest"),
    ],
)
def test_a_config_that_means_nothing_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        CurriculumConfig(**change)
