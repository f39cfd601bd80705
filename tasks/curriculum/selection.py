"""Which problems are worth a rollout now.

state -> share per horizon (ladder) -> per horizon: replays, unseen, band -> Selection

A group teaches only when its outcomes differ, so problems are ranked by p (1 - p) of a pass rate drawn from their
posterior (Thompson sampling). The same state, problems, iteration and seed give the same choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from data_contracts.records import HORIZONS, Horizon, Problem, Record
from tasks.curriculum.config import CurriculumConfig
from tasks.curriculum.posterior import belief, expected_tokens, success_rate
from tasks.curriculum.state import CurriculumState

Reason = Literal["replay", "unseen", "band", "spare"]


class Selection(Record):
    """The problems of one iteration, and why each was taken."""

    iteration: int
    problem_ids: tuple[str, ...]
    reasons: dict[str, Reason]
    expected_rates: dict[str, float]
    expected_tokens: dict[str, float] = Field(default={}, description="of one rollout")
    horizon_shares: dict[Horizon, float]
    pool: dict[Reason, int]


class _Candidate(NamedTuple):
    problem_id: str
    reason: Reason
    score: float
    mean: float
    tokens: float


def select(
    state: CurriculumState,
    problems: Sequence[Problem],
    iteration: int,
    config: CurriculumConfig,
    seed: int,
    rollouts: int = 1,
) -> Selection:
    """Choose `problems_per_iteration` distinct problems, or all where there are fewer.

    Within a horizon: up to `replay_share` recent failures, `unseen_share` unseen problems, the rest in band; what one
    kind lacks, another fills. With a `token_budget` problems are ranked by signal a token, and those with the least go
    until `rollouts` of each are expected to stay within it (one problem always stays).
    Raises ValueError when there is nothing to choose from or an id comes twice.
    """
    if not problems:
        raise ValueError("no problem to choose from: none was admitted")
    if len({problem.id for problem in problems}) != len(problems):
        raise ValueError("a problem id comes twice")
    candidates = _candidates(state, problems, iteration, config, seed)
    if config.strategy == "uniform":
        return _uniform(candidates, iteration, config, seed)
    shares = horizon_shares(state, [h for h in HORIZONS if candidates.get(h)], iteration, config)
    quotas = _quotas(shares, {h: len(found) for h, found in candidates.items()}, config.problems_per_iteration)
    chosen = [item for horizon, quota in quotas.items() for item in _choose(candidates[horizon], quota, config)]
    return _selection(_affordable(chosen, rollouts, config), candidates, shares, iteration)


def _affordable(chosen: Sequence[_Candidate], rollouts: int, config: CurriculumConfig) -> list[_Candidate]:
    """The chosen problems that fit the token budget, in their order; the best a token are taken first."""
    if config.token_budget is None:
        return list(chosen)
    kept: set[str] = set()
    left = float(config.token_budget)
    for item in sorted(chosen, key=lambda item: -item.score):
        if not kept or item.tokens * rollouts <= left:
            kept.add(item.problem_id)
            left -= item.tokens * rollouts
    return [item for item in chosen if item.problem_id in kept]


def _uniform(
    candidates: Mapping[Horizon, Sequence[_Candidate]], iteration: int, config: CurriculumConfig, seed: int
) -> Selection:
    """Any problem with equal chance: what the curriculum is compared with."""
    everything = sorted(item for found in candidates.values() for item in found)
    count = min(config.problems_per_iteration, len(everything))
    drawn = np.random.default_rng([seed, iteration]).permutation(len(everything))[:count]
    shares = {horizon: len(found) / len(everything) for horizon, found in candidates.items()}
    return _selection([everything[place] for place in drawn.tolist()], candidates, shares, iteration)


def _selection(
    chosen: Sequence[_Candidate],
    candidates: Mapping[Horizon, Sequence[_Candidate]],
    shares: dict[Horizon, float],
    iteration: int,
) -> Selection:
    reasons = [item.reason for found in candidates.values() for item in found]
    return Selection(
        iteration=iteration,
        problem_ids=tuple(item.problem_id for item in chosen),
        reasons={item.problem_id: item.reason for item in chosen},
        expected_rates={item.problem_id: item.mean for item in chosen},
        expected_tokens={item.problem_id: item.tokens for item in chosen},
        horizon_shares=shares,
        pool={reason: reasons.count(reason) for reason in ("replay", "unseen", "band", "spare")},
    )


def horizon_shares(
    state: CurriculumState, horizons: Sequence[Horizon], iteration: int, config: CurriculumConfig
) -> dict[Horizon, float]:
    """Share of the choice for each horizon, easiest first; the shares sum to 1.

    The first is open. A later one opens from `step_floor` to 1 while the success rate of the one before it rises from
    `step_from` to `step_full`, times how far open that one is itself.
    """
    opened: dict[Horizon, float] = {}
    before, rate = 1.0, 1.0
    for horizon in horizons:
        ramp = min(max((rate - config.step_from) / (config.step_full - config.step_from), 0.0), 1.0)
        opened[horizon] = before = max(before * ramp, config.step_floor)
        rate = success_rate(state, horizon, iteration, config)
    return {horizon: value / sum(opened.values()) for horizon, value in opened.items()}


def _candidates(
    state: CurriculumState, problems: Sequence[Problem], iteration: int, config: CurriculumConfig, seed: int
) -> dict[Horizon, list[_Candidate]]:
    """All problems by horizon, best first. Sorted by id before drawing, so that their order in the pool is nothing."""
    ordered = sorted(problems, key=lambda problem: problem.id)
    beliefs = [belief(state, problem, iteration, config) for problem in ordered]
    costs = [expected_tokens(state, problem, iteration, config) for problem in ordered]
    alpha, beta = np.array(beliefs, dtype=np.float64).T
    drawn = np.random.default_rng([seed, iteration]).beta(alpha, beta)
    found: dict[Horizon, list[_Candidate]] = {}
    for problem, known, cost, rate in zip(ordered, beliefs, costs, drawn.tolist(), strict=True):
        reason = _reason(state, problem.id, known.mean, iteration, config)
        signal = rate * (1 - rate)
        score = signal if config.token_budget is None else signal / cost
        item = _Candidate(problem.id, reason, score, known.mean, cost)
        found.setdefault(problem.horizon, []).append(item)
    return {h: sorted(items, key=lambda item: -item.score) for h, items in found.items()}


def _reason(state: CurriculumState, problem_id: str, mean: float, iteration: int, config: CurriculumConfig) -> Reason:
    record = state.problems.get(problem_id)
    if record is None:
        return "unseen"
    age = iteration - record.last_iteration
    if age <= config.rest:
        return "spare"
    if record.last_rate < config.low and age <= config.replay_window:
        return "replay"
    return "band" if config.low < mean < config.high else "spare"


def _quotas(shares: Mapping[Horizon, float], available: Mapping[Horizon, int], n: int) -> dict[Horizon, int]:
    """Whole numbers per horizon by largest remainder; what a horizon lacks goes to the others, easiest first."""
    wanted = {h: share * n for h, share in shares.items()}
    quotas = {h: int(value) for h, value in wanted.items()}
    by_remainder = sorted(wanted, key=lambda h: (quotas[h] - wanted[h], HORIZONS.index(h)))
    for horizon in by_remainder[: n - sum(quotas.values())]:
        quotas[horizon] += 1
    quotas = {h: min(quota, available[h]) for h, quota in quotas.items()}
    for horizon in quotas:
        quotas[horizon] += min(available[horizon] - quotas[horizon], n - sum(quotas.values()))
    return quotas


def _choose(candidates: Sequence[_Candidate], quota: int, config: CurriculumConfig) -> list[_Candidate]:
    """Fill the quota: replays and unseen up to their shares, then band, then whatever is left, best first."""
    of: dict[Reason, list[_Candidate]] = {"replay": [], "unseen": [], "band": [], "spare": []}
    for item in candidates:
        of[item.reason].append(item)
    first = of["replay"][: round(config.replay_share * quota)] + of["unseen"][: round(config.unseen_share * quota)]
    taken = {item.problem_id for item in first}
    rest = [item for kind in ("band", "unseen", "replay", "spare") for item in of[kind] if item.problem_id not in taken]
    return (first + rest)[:quota]
