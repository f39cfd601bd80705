"""Whole canaries by simulation: false alarms over a thousand, exposure to a worse one, promotion of a better one.

All canaries at once on running sums, and some of them session by session through `canary_decision`, which must agree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from tasks.canary.analysis import half_width
from tasks.canary.config import CanaryConfig, Metric, Stage
from tasks.canary.decision import canary_decision
from tasks.canary.sessions import LiveSession

RUNS, LOOKS, SIZE = 1000, 50, 80
STAGES = (Stage(share=0.05, sessions=20), Stage(share=0.25, sessions=50), Stage(share=0.5, sessions=100))


def config(*, errors: float, latency: float) -> CanaryConfig:
    """Success is compared without any margin: an equal candidate is on the edge of a false alarm."""
    metrics = (
        Metric(name="success", better="higher", criticality="promotes", scale=1.0),
        Metric(name="errors", better="lower", criticality="promotes", margin=errors, scale=1.0),
        Metric(name="latency", better="lower", criticality="guards", margin=latency, relative=True),
    )
    return CanaryConfig(stages=STAGES, metrics=metrics, max_sessions=LOOKS * SIZE)


class Draws(NamedTuple):
    """What a session will be, [runs, LOOKS * SIZE]: its point below the share, success, loss and pace."""

    point: np.ndarray
    success: np.ndarray
    loss: np.ndarray
    pace: np.ndarray


class Ends(NamedTuple):
    """How each canary ended, [runs]: action, look, and sessions that the candidate had served by then."""

    action: np.ndarray
    look: np.ndarray
    exposure: np.ndarray


def draws(runs: int, seed: int) -> Draws:
    rng = np.random.default_rng(seed)
    shape = runs, LOOKS * SIZE
    return Draws(rng.random(shape), rng.random(shape), rng.random(shape), rng.lognormal(0.0, 0.6, shape))


def simulate(drawn: Draws, success: tuple[float, float], settings: CanaryConfig) -> Ends:
    """All canaries at once; `success` of champion and candidate; both lose 2 % of their sessions."""
    runs = len(drawn.point)
    sums = np.zeros((3, 3, len(STAGES), 2, runs))  # metric, (n, sum, sum of squares), stage, arm, run
    stage, exposure = np.zeros(runs, dtype=int), np.zeros(runs)
    action, ended = np.full(runs, "continue", dtype="<U8"), np.full(runs, LOOKS)
    shares, needed = np.array([s.share for s in STAGES]), np.array([s.sessions for s in STAGES])
    for look in range(LOOKS):
        part = slice(look * SIZE, (look + 1) * SIZE)
        going = action == "continue"
        candidate = drawn.point[:, part] < shares[stage][:, None]
        lost = drawn.loss[:, part] < 0.02
        solved = (drawn.success[:, part] < np.where(candidate, success[1], success[0])) & ~lost
        every_one = np.ones_like(lost)
        figures = (solved, every_one), (lost, every_one), (drawn.pace[:, part], ~lost)
        for metric, (values, known) in enumerate(figures):
            for arm, mine in enumerate((~candidate, candidate)):
                counted = mine & known
                for power in range(3):
                    added = (np.asarray(values, dtype=float) ** power * counted).sum(axis=1)
                    np.add.at(sums[metric, power], (stage, arm, np.arange(runs)), added)
        exposure += np.where(going, candidate.sum(axis=1), 0)
        passed, failed = _verdicts(sums, settings)
        known_latency = sums[2, 0].sum(axis=0).min(axis=0) >= settings.minimum_sessions
        had = sums[1, 0][stage, :, np.arange(runs)].min(axis=1) >= needed[stage]
        last = stage == len(STAGES) - 1
        ready = had & last & passed[0] & passed[1] & known_latency
        rolled, promoted = going & failed.any(axis=0), going & ~failed.any(axis=0) & ready
        for name, which in (("rollback", rolled), ("promote", promoted)):
            action[which], ended[which] = name, look
        stage = np.where(going & had & ~last, stage + 1, stage)
    return Ends(np.where(action == "continue", "hold", action), ended, exposure)


def _verdicts(sums: np.ndarray, settings: CanaryConfig) -> tuple[np.ndarray, np.ndarray]:
    """[metric, run] whether each passes and fails: `compare` with strata, on sums."""
    passed, failed = [], []
    for metric, rule in enumerate(settings.metrics):
        weight = 1.0 + rule.margin if rule.relative else 1.0
        n, total, squares = (sums[metric, power] * _weights(weight, power) for power in range(3))
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = total / n
            around = np.where(n > 0, squares - total**2 / n, 0.0).sum(axis=0)
            freedom = n.sum(axis=0) + 1 if rule.scale else n.sum(axis=0) - (n > 0).sum(axis=0)
            spread = (around + rule.scale**2) / np.maximum(freedom, 1)  # [arm, run]
            both = (n > 0).all(axis=1)  # [stage, run]
            pairs = np.where(both, n[:, 0] * n[:, 1] / n.sum(axis=1), 0.0)
            effective = pairs.sum(axis=0)
            share = pairs / effective
            estimate = np.where(both, share * (mean[:, 1] - mean[:, 0]), 0.0).sum(axis=0)
            variance = np.where(both, share**2 * (spread / n).sum(axis=1), 0.0).sum(axis=0)
            radius = half_width(variance, effective, alpha=settings.alpha / 3, tuned_sessions=settings.tuned_sessions)
        enough = n.sum(axis=0).min(axis=0) >= settings.minimum_sessions
        sign, limit = (1.0 if rule.better == "higher" else -1.0), 0.0 if rule.relative else -rule.margin
        passed.append(enough & (sign * estimate - radius > limit))
        failed.append(enough & (sign * estimate + radius < limit))
    return np.array(passed), np.array(failed)


def _weights(weight: float, power: int) -> np.ndarray:
    """What scales the champion's sums of a relative metric, [1, arm, 1]."""
    return np.array([weight**power, 1.0])[None, :, None]


def replay(drawn: Draws, run: int, success: tuple[float, float], settings: CanaryConfig) -> tuple[str, int, int]:
    """One of the canaries, session by session through the real decision."""
    sessions: list[LiveSession] = []
    stage, share = 0, STAGES[0].share
    for look in range(LOOKS):
        for i in range(look * SIZE, (look + 1) * SIZE):
            mine = bool(drawn.point[run, i] < share)
            lost = bool(drawn.loss[run, i] < 0.02)
            solved = bool(drawn.success[run, i] < success[mine])
            sessions.append(
                LiveSession.model_construct(
                    session=str(i), stage=stage, arm="candidate" if mine else "champion", release="r", digest="d",
                    status="engine_error" if lost else "completed", outcome=solved, turns=0 if lost else 1,
                    latency=float(drawn.pace[run, i]), shadow=False,
                )
            )  # fmt: skip
        decision = canary_decision(sessions, settings)
        if decision.action != "continue" or look == LOOKS - 1:
            return decision.action, look, sum(session.arm == "candidate" for session in sessions)
        stage, share = decision.stage, decision.share
    raise AssertionError("LOOKS is at least 1")


def test_fifty_looks_at_equal_candidates_raise_no_more_false_alarms_than_stated() -> None:
    """No margin at all, so that a rollback or a promotion of an equal candidate are both false alarms."""
    strict = config(errors=0.0, latency=0.0)
    ends = simulate(draws(RUNS, 1), (0.5, 0.5), strict)
    rolled, promoted = (float((ends.action == name).mean()) for name in ("rollback", "promote"))
    print(f"\nequal, {RUNS} canaries of {LOOKS} looks: {rolled:.1%} rolled back, {promoted:.1%} promoted")
    assert rolled <= strict.alpha and promoted <= strict.alpha
    assert rolled > 0.0, "a test that never alarms would say nothing"


def test_a_candidate_ten_points_worse_is_rolled_back() -> None:
    ends = simulate(draws(RUNS, 2), (0.5, 0.4), config(errors=0.05, latency=0.3))
    rolled = ends.action == "rollback"
    exposed = float(np.median(ends.exposure[rolled]))
    print(f"\n10 points worse: {rolled.mean():.1%} rolled back, median exposure {exposed:.0f} sessions")
    assert rolled.mean() >= 0.95 and not (ends.action == "promote").any()
    assert exposed <= 900


def test_a_candidate_ten_points_better_is_promoted() -> None:
    ends = simulate(draws(RUNS, 3), (0.5, 0.6), config(errors=0.05, latency=0.3))
    promoted = ends.action == "promote"
    needed = float(np.median((ends.look[promoted] + 1) * SIZE))
    print(f"\n10 points better: {promoted.mean():.1%} promoted, after a median of {needed:.0f} sessions of both arms")
    assert promoted.mean() >= 0.95
    assert (ends.action == "rollback").mean() <= 0.05


@pytest.mark.parametrize("success", [(0.5, 0.4), (0.5, 0.6), (0.5, 0.5)])
def test_the_simulated_canaries_are_those_of_the_real_decision(success: tuple[float, float]) -> None:
    settings, drawn = config(errors=0.05, latency=0.3), draws(2, 5)
    ends = simulate(drawn, success, settings)
    for run in range(2):
        action, look, exposure = replay(drawn, run, success, settings)
        assert (action, exposure) == (ends.action[run], ends.exposure[run])
        assert look == ends.look[run] or action == "hold"
