from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_contracts.records import Check, Problem
from tasks.curriculum.config import CurriculumConfig
from tasks.curriculum.posterior import expected_tokens
from tasks.curriculum.selection import horizon_shares, select
from tasks.curriculum.state import CurriculumState, ProblemOutcome, update

CONFIG = CurriculumConfig()
CHECK = (Check(name="c", code="assert 0"),)


def problem(name: str, horizon: str = "short", tags: tuple[str, ...] = ()) -> Problem:
    files = {"m.py": ""}
    return Problem(
        id=name, prompt="p", files=files, visible=CHECK, hidden=CHECK, solution=files, horizon=horizon, tags=tags
    )


def outcome(name: str, passed: int, failed: int, horizon: str = "short") -> ProblemOutcome:
    return ProblemOutcome(problem_id=name, horizon=horizon, passed=passed, failed=failed)


def seen(outcomes: list[ProblemOutcome]) -> CurriculumState:
    return update(CurriculumState(), outcomes, 0, CONFIG)


def test_the_choice_depends_on_seed_and_iteration_and_not_on_the_order_of_the_pool():
    pool = [problem(f"p{i:03}") for i in range(200)]
    first = select(CurriculumState(), pool, 0, CONFIG, seed=7)
    assert select(CurriculumState(), pool[::-1], 0, CONFIG, seed=7) == first
    assert select(CurriculumState(), pool, 0, CONFIG, seed=8).problem_ids != first.problem_ids
    assert select(CurriculumState(), pool, 1, CONFIG, seed=7).problem_ids != first.problem_ids
    assert len(set(first.problem_ids)) == 16 == len(first.problem_ids)
    assert set(first.reasons.values()) == {"unseen"}


def test_shares_of_replays_unseen_and_band():
    results = [outcome(f"mid{i}", 4, 4) for i in range(20)]
    results += [outcome(f"hard{i}", 0, 8) for i in range(20)]
    results += [outcome(f"easy{i}", 8, 0) for i in range(20)]
    pool = [problem(r.problem_id) for r in results] + [problem(f"new{i}") for i in range(20)]
    config = CONFIG.model_copy(update={"problems_per_iteration": 20})
    chosen = select(seen(results), pool, 4, config, seed=0)
    kinds = [name.rstrip("0123456789") for name in chosen.problem_ids]
    assert [kinds.count(kind) for kind in ("hard", "new", "mid", "easy")] == [3, 10, 7, 0]
    assert {chosen.reasons[name] for name in chosen.problem_ids if name.startswith("hard")} == {"replay"}
    assert {chosen.reasons[name] for name in chosen.problem_ids if name.startswith("mid")} == {"band"}
    assert chosen.pool == {"replay": 20, "unseen": 20, "band": 20, "spare": 20}


def test_a_problem_rests_after_it_was_tried_and_old_failures_are_forgotten():
    pool = [problem("mid"), problem("hard")]
    state = seen([outcome("mid", 4, 4), outcome("hard", 0, 8)])
    assert select(state, pool, 3, CONFIG, seed=0).reasons == {"mid": "spare", "hard": "spare"}
    assert select(state, pool, 4, CONFIG, seed=0).reasons == {"mid": "band", "hard": "replay"}
    assert select(state, pool, 21, CONFIG, seed=0).reasons["hard"] != "replay"


def test_what_one_kind_lacks_another_fills():
    pool = [problem(f"easy{i}") for i in range(5)] + [problem("new")]
    state = seen([outcome(f"easy{i}", 8, 0) for i in range(5)])
    config = CONFIG.model_copy(update={"problems_per_iteration": 4})
    chosen = select(state, pool, 9, config, seed=0)
    assert len(set(chosen.problem_ids)) == 4
    assert sorted(chosen.reasons.values()) == ["spare", "spare", "spare", "unseen"]


def test_a_pool_smaller_than_the_choice_is_taken_whole():
    pool = [problem("a"), problem("b", "medium"), problem("c", "long")]
    assert sorted(select(CurriculumState(), pool, 0, CONFIG, seed=0).problem_ids) == ["a", "b", "c"]


@settings(deadline=None)
@given(st.data())
def test_the_choice_is_always_full_and_without_repeats(data):
    n = data.draw(st.integers(1, 12))
    horizons = data.draw(st.lists(st.sampled_from(["short", "medium", "long"]), min_size=1, max_size=20))
    pool = [problem(f"p{i}", horizon) for i, horizon in enumerate(horizons)]
    tried = data.draw(st.lists(st.tuples(st.sampled_from(pool), st.integers(0, 4)), max_size=10))
    shares = data.draw(st.sampled_from([(0.5, 0.5), (1.0, 0.0), (0.0, 1.0), (0.5, 0.15), (0.0, 0.0)]))
    config = CurriculumConfig(problems_per_iteration=n, unseen_share=shares[0], replay_share=shares[1])
    state = seen([outcome(p.id, passed, 4 - passed, p.horizon) for p, passed in tried])
    chosen = select(state, pool, 5, config, seed=0)
    assert len(chosen.problem_ids) == min(n, len(pool)) == len(set(chosen.problem_ids))
    assert chosen.reasons.keys() == set(chosen.problem_ids)


def test_the_ladder_opens_with_the_success_of_the_level_below():
    levels = ["short", "medium", "long"]
    config = CONFIG.model_copy(update={"step_from": 0.4, "step_full": 0.8, "step_floor": 0.1, "prior_strength": 1e-9})
    start = horizon_shares(CurriculumState(), levels, 0, config)
    assert start == pytest.approx({"short": 1 / 1.2, "medium": 0.1 / 1.2, "long": 0.1 / 1.2})
    half = update(CurriculumState(), [outcome("a", 6, 4)], 0, config)
    assert horizon_shares(half, levels, 0, config) == pytest.approx(
        {"short": 1 / 1.6, "medium": 0.5 / 1.6, "long": 0.1 / 1.6}
    )
    mastered = update(CurriculumState(), [outcome("a", 9, 1), outcome("b", 6, 4, "medium")], 0, config)
    assert horizon_shares(mastered, levels, 0, config) == pytest.approx(
        {"short": 1 / 2.5, "medium": 1 / 2.5, "long": 0.5 / 2.5}
    )


def test_the_choice_follows_the_ladder():
    pool = [problem(f"{h}{i}", h) for h in ("short", "medium", "long") for i in range(50)]
    config = CONFIG.model_copy(update={"problems_per_iteration": 24})
    chosen = select(CurriculumState(), pool, 0, config, seed=0)
    kinds = [name.rstrip("0123456789") for name in chosen.problem_ids]
    assert [kinds.count(kind) for kind in ("short", "medium", "long")] == [20, 2, 2]
    only_hard = select(CurriculumState(), [p for p in pool if p.horizon != "short"], 0, config, seed=0)
    assert only_hard.horizon_shares["medium"] == pytest.approx(1 / 1.1)


def test_no_problem_or_a_doubled_one_is_refused():
    with pytest.raises(ValueError, match="none was admitted"):
        select(CurriculumState(), [], 0, CONFIG, seed=0)
    with pytest.raises(ValueError, match="twice"):
        select(CurriculumState(), [problem("a"), problem("a")], 0, CONFIG, seed=0)


def test_more_groups_carry_a_signal_than_under_uniform_choice():
    """A policy that solves each problem at its own fixed rate; a group of eight teaches when it is mixed."""
    rng = random.Random(0)
    rates, pool = {}, []
    for i in range(400):
        tag = rng.choice(["trivial", "trivial", "hopeless", "hopeless", "fair"])
        rates[f"p{i}"] = {"trivial": 0.995, "hopeless": 0.005, "fair": rng.uniform(0.2, 0.8)}[tag]
        pool.append(problem(f"p{i}", tags=(tag,)))
    by_id = {p.id: p for p in pool}

    def play(choose) -> float:
        state, mixed, groups = CurriculumState(), 0, 0
        for iteration in range(30):
            results = []
            for name in choose(state, iteration):
                passed = sum(rng.random() < rates[name] for _ in range(8))
                results.append(
                    ProblemOutcome(
                        problem_id=name, horizon="short", tags=by_id[name].tags, passed=passed, failed=8 - passed
                    )
                )
                mixed += 0 < passed < 8
                groups += 1
            state = update(state, results, iteration, CONFIG)
        return mixed / groups

    uniform = play(lambda state, iteration: rng.sample(list(rates), 16))
    chosen = play(lambda state, iteration: select(state, pool, iteration, CONFIG, seed=1).problem_ids)
    assert uniform < 0.35
    assert chosen > uniform + 0.25


def test_uniform_gives_every_problem_the_same_chance_whatever_is_known() -> None:
    problems = [problem(f"p{i}", "short" if i < 30 else "long") for i in range(40)]
    state = update(CurriculumState(), [outcome(f"p{i}", 4, 0) for i in range(20)], 0, CONFIG)
    config = CONFIG.model_copy(update={"strategy": "uniform", "problems_per_iteration": 10})
    counts = dict.fromkeys((p.id for p in problems), 0)
    for iteration in range(1, 401):
        chosen = select(state, problems, iteration, config, 7)
        assert len(set(chosen.problem_ids)) == 10
        for name in chosen.problem_ids:
            counts[name] += 1
    assert max(abs(count - 100) for count in counts.values()) < 35  # 400 draws of 10 in 40: 100 each, deviation 8.7
    assert chosen.horizon_shares == {"short": 0.75, "long": 0.25}
    assert select(state, problems[::-1], 3, config, 7) == select(state, problems, 3, config, 7)


def test_dear_problems_have_to_earn_their_tokens_under_a_budget() -> None:
    cheap, dear = [problem(f"c{i}") for i in range(4)], [problem(f"d{i}") for i in range(4)]
    told = [ProblemOutcome(problem_id=p.id, horizon="short", passed=2, failed=2, tokens=4 * 50) for p in cheap]
    told += [ProblemOutcome(problem_id=p.id, horizon="short", passed=2, failed=2, tokens=4 * 950) for p in dear]
    changes = {"problems_per_iteration": 8, "unseen_share": 0.0, "replay_share": 0.0, "rest": 0}
    config = CONFIG.model_copy(update=changes | {"prior_strength": 1e-9})
    state = update(CurriculumState(), told, 0, config)
    free = select(state, cheap + dear, 1, config, 0, rollouts=4)
    assert len(free.problem_ids) == 8
    assert free.expected_tokens["c0"] == pytest.approx(50)
    assert free.expected_tokens["d3"] == pytest.approx(950)
    budget = config.model_copy(update={"token_budget": 4 * (4 * 50 + 950) + 1})
    tight = select(state, cheap + dear, 1, budget, 0, rollouts=4)
    assert {name for name in tight.problem_ids if name.startswith("c")} == {p.id for p in cheap}
    assert len(tight.problem_ids) == 5, "one dear problem is paid for"
    assert len(select(state, dear, 1, config.model_copy(update={"token_budget": 1}), 0, rollouts=4).problem_ids) == 1


def test_tokens_of_what_was_never_tried_are_its_horizons_or_half_its_limit() -> None:
    new, other = problem("new"), problem("other", "medium")
    config = CONFIG.model_copy(update={"prior_strength": 2.0})
    state = update(
        CurriculumState(), [ProblemOutcome(problem_id="x", horizon="short", passed=1, failed=3, tokens=400)], 0, config
    )
    assert expected_tokens(state, new, 0, config) == pytest.approx(100)
    assert expected_tokens(state, other, 0, config) == other.limits.tokens / 2
    again = update(
        state, [ProblemOutcome(problem_id="new", horizon="short", passed=2, failed=0, tokens=600)], 1, config
    )
    level = (400 * 0.8 + 600) / (4 * 0.8 + 2)
    assert expected_tokens(again, new, 1, config) == pytest.approx((2 * level + 600) / (2 + 2))
