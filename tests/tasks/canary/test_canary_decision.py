"""What the canary does next: stages, promotion, rollback, hold."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts.gates import Verdict
from tasks.canary.config import HELDOUT_METRICS, CanaryConfig, Metric, Stage
from tasks.canary.decision import Circumstances, canary_decision
from tasks.canary.evidence import compare_all
from tasks.canary.sessions import LiveSession, metric_value

CONFIG = CanaryConfig()
_NUMBERS = itertools.count()


def sessions(arm: str, successes: int, failures: int, *, stage: int = 0, **changes: Any) -> list[LiveSession]:
    """Served sessions of an arm, each slightly unlike the next in latency and tokens."""
    return [
        LiveSession.model_validate(
            {
                "session": f"s{next(_NUMBERS)}",
                "stage": stage,
                "arm": arm,
                "release": arm,
                "digest": arm,
                "problem_id": "p",
                "horizon": "short",
                "status": "completed",
                "outcome": i < successes,
                "turns": 2,
                "tokens": 40 + i % 3,
                "latency": 1.0 + 0.01 * (i % 5),
            }
            | changes
        )
        for i in range(successes + failures)
    ]


def both(champion: tuple[int, int], candidate: tuple[int, int], stage: int = 0) -> list[LiveSession]:
    return sessions("champion", *champion, stage=stage) + sessions("candidate", *candidate, stage=stage)


def test_no_sessions_yet_starts_at_the_first_share() -> None:
    decision = canary_decision([], CONFIG)
    assert (decision.action, decision.share, decision.stage) == ("continue", 0.25, 0)
    assert {gate.verdict for gate in decision.gates} == {Verdict.INCONCLUSIVE}


def test_a_stage_goes_on_only_when_both_arms_had_their_sessions() -> None:
    short = canary_decision(both((20, 40), (9, 10)), CONFIG)
    assert (short.action, short.share, short.stage) == ("continue", 0.25, 0)
    full = canary_decision(both((20, 40), (10, 10)), CONFIG)
    assert (full.action, full.share, full.stage) == ("continue", 0.5, 1)


def test_a_better_candidate_is_promoted_at_the_last_stage_only() -> None:
    evidence = both((35, 65), (70, 30))
    assert canary_decision(evidence, CONFIG).action == "continue"
    decision = canary_decision(evidence + both((10, 20), (20, 10), stage=1), CONFIG)
    assert (decision.action, decision.share) == ("promote", 1.0)
    assert {g.name: g.verdict for g in decision.gates}["canary_success"] is Verdict.PASS


def test_a_worse_candidate_is_rolled_back_at_any_stage() -> None:
    decision = canary_decision(both((40, 20), (0, 25)), CONFIG)
    assert (decision.action, decision.share, decision.stage) == ("rollback", 0.0, 0)
    assert "success" in decision.reason


def test_a_candidate_that_does_not_answer_is_rolled_back() -> None:
    broken = sessions("candidate", 0, 20, status="engine_error", outcome=None, turns=0)
    decision = canary_decision(sessions("champion", 30, 30) + broken, CONFIG)
    assert decision.action == "rollback"


def test_a_broken_champion_does_not_block_a_good_candidate() -> None:
    """Also when a critical metric cannot be had of a champion that serves nothing."""
    metrics = tuple(
        m.model_copy(update={"criticality": "promotes"}) if m.name == "latency" else m for m in HELDOUT_METRICS
    )
    config = CanaryConfig(metrics=metrics)
    evidence = [
        session
        for stage in (0, 1)
        for session in (
            *sessions("champion", 0, 60, stage=stage, status="engine_error", outcome=None, turns=0),
            *sessions("candidate", 30, 30, stage=stage),
        )
    ]
    decision = canary_decision(evidence, config)
    assert decision.action == "promote"
    assert {g.name: g.verdict for g in decision.gates}["canary_latency"] is Verdict.INCONCLUSIVE


def test_without_a_broken_champion_a_critical_metric_without_data_blocks() -> None:
    metrics = (
        HELDOUT_METRICS[0],
        HELDOUT_METRICS[1],
        Metric(name="latency", better="lower", criticality="promotes", margin=9),
    )
    evidence = both((35, 65), (90, 10)) + both((35, 65), (90, 10), stage=1)
    config = CanaryConfig(metrics=metrics, max_sessions=1000)
    blind = [session.model_copy(update={"turns": 0}) for session in evidence]
    assert canary_decision(blind, config).action == "continue"
    assert canary_decision(evidence, config).action == "promote"


def test_stopped_traffic_holds_and_never_goes_on() -> None:
    """A stage that is full, or a candidate that would win later, makes no difference."""
    for evidence in ([], both((5, 5), (5, 5)), both((20, 40), (20, 20))):
        decision = canary_decision(evidence, CONFIG, Circumstances(stopped=True))
        assert (decision.action, decision.share, decision.stage) == ("hold", 0.25, 0)


def test_sessions_that_run_out_without_a_decision_hold() -> None:
    evidence = both((50, 50), (50, 50)) + both((20, 20), (20, 20), stage=1)
    assert canary_decision(evidence, CONFIG).action == "continue"
    assert canary_decision(evidence, CONFIG, Circumstances(exhausted=True)).action == "hold"
    assert canary_decision(evidence, CONFIG.model_copy(update={"max_sessions": 280})).action == "hold"


def test_a_superseded_candidate_goes_back_to_the_champion_even_when_it_would_win() -> None:
    evidence = both((35, 65), (90, 10)) + both((10, 20), (25, 5), stage=1)
    assert canary_decision(evidence, CONFIG).action == "promote"
    decision = canary_decision(evidence, CONFIG, Circumstances(superseded=True))
    assert (decision.action, decision.share) == ("rollback", 0.0)


def test_a_failed_metric_that_is_not_critical_is_shown_and_does_not_decide() -> None:
    slow = [
        session.model_copy(update={"latency": session.latency * 5}) if session.arm == "candidate" else session
        for session in both((35, 65), (90, 10)) + both((10, 20), (25, 5), stage=1)
    ]
    decision = canary_decision(slow, CONFIG)
    assert decision.action == "promote"
    assert {g.name: g.verdict for g in decision.gates}["canary_latency"] is Verdict.FAIL


def test_sessions_lost_to_the_sandbox_count_for_nobody() -> None:
    lost = sessions("candidate", 0, 50, status="sandbox_error", outcome=None)
    decision = canary_decision(sessions("champion", 30, 30) + lost, CONFIG)
    assert (decision.action, decision.stage) == ("continue", 0)
    assert all(metric_value(lost[0], metric.name) is None for metric in HELDOUT_METRICS)


def test_metric_values_by_hand() -> None:
    session = sessions("champion", 1, 0, turns=4, latency=6.0, tool_errors=3, tokens=44)[0]
    values = {name: metric_value(session, name) for name in ("success", "errors", "tool_errors", "latency", "tokens")}
    assert values == {"success": 1.0, "errors": 0.0, "tool_errors": 3.0, "latency": 1.5, "tokens": 44.0}
    assert metric_value(session, "nonsense") is None


LIVE = CanaryConfig(
    traffic="live",
    stages=(Stage(shadow=True, sessions=20), Stage(share=0.5, sessions=20, bake_seconds=60), Stage(bake_seconds=60)),
    metrics=HELDOUT_METRICS[:2],
    approval="before_promotion",
)


def test_a_shadow_stage_ends_with_its_copies_and_an_unanswering_champion_does_not_block_it() -> None:
    copies = sessions("candidate", 0, 20, outcome=None, shadow=True)
    served = canary_decision(sessions("champion", 10, 10), LIVE)
    assert (served.action, served.share, served.stage, served.waits_for) == ("continue", 0.0, 0, "sessions")
    done = canary_decision(sessions("champion", 10, 10) + copies, LIVE)
    assert (done.action, done.share, done.stage) == ("continue", 0.5, 1)
    dead = sessions("champion", 0, 20, status="engine_error", outcome=None, turns=0)
    assert canary_decision(dead, LIVE).stage == 1


def test_everything_is_given_only_on_evidence_and_baked_and_approved_before_the_alias_moves() -> None:
    def at(evidence: list[LiveSession], stage: int, **given: Any) -> tuple[str, str | None, int]:
        decision = canary_decision(evidence, LIVE, Circumstances(stage=stage, **given))
        return decision.action, decision.waits_for, decision.stage

    equal, better = (both(*figures, stage=1) for figures in (((50, 50), (50, 50)), ((35, 65), (90, 10))))
    assert at(equal, 1) == ("continue", "evidence", 1)
    assert at(better, 1, seconds=59.0) == ("continue", "bake", 1)
    assert at(better, 1, seconds=60.0) == ("continue", None, 2)
    whole = better + sessions("candidate", 20, 0, stage=2)
    assert at(whole, 2, seconds=59.0) == ("continue", "bake", 2)
    assert at(whole, 2, seconds=61.0) == ("continue", "approval", 2)
    assert at(whole, 2, seconds=61.0, approved=True) == ("promote", None, 2)
    assert at(whole, 2, seconds=1.0, approved=False)[0] == "rollback"
    assert at(whole, 2, approved=True, stopped=True) == ("hold", "traffic", 2)
    broken = sessions("candidate", 0, 80, stage=2, status="engine_error", outcome=None, turns=0)
    assert at(whole + broken, 2, approved=True)[0] == "rollback", "armed after the last share too"


def test_a_candidate_that_goes_wrong_only_once_it_gets_everything_is_rolled_back_on_its_sessions_since_then() -> None:
    better = both((700, 300), (900, 100), stage=1)
    for failures, action in ((5, "continue"), (60, "rollback")):
        whole = better + sessions("candidate", 0, failures, stage=2)
        decision = canary_decision(whole, LIVE, Circumstances(stage=2, seconds=1.0))
        assert decision.action == action, decision.reason
    success = next(gate for gate in decision.gates if gate.name == "canary_success")
    assert success.evidence["n_candidate"] == 60, "the 1,000 sessions before say nothing of what happens now"


def test_a_guard_holds_without_data_and_rolls_back_on_a_failure_but_need_not_pass() -> None:
    def decided(evidence: list[LiveSession], name: str) -> str:
        guard = Metric(name=name, better="lower", criticality="guards", margin=0.1, scale=1.0)
        config = CanaryConfig.model_construct(**dict(CONFIG) | {"metrics": (*HELDOUT_METRICS[:2], guard)})
        return canary_decision(evidence, config, Circumstances(exhausted=True)).action

    fine = both((35, 65), (90, 10)) + both((10, 20), (25, 5), stage=1)
    told = [session.model_copy(update={"refused": n % 5 == 0}) for n, session in enumerate(fine)]
    refuses = [session.model_copy(update={"refused": session.arm == "candidate"}) for session in fine]
    assert (decided(told, "refusals"), decided(fine, "refusals")) == ("promote", "hold")
    assert decided(refuses, "refusals") == "rollback"
    assert decided(told, "refusal") == "hold", "a misspelt name has no data"


def test_a_slow_tail_is_seen_where_the_mean_is_not_worse() -> None:
    def paced(arm: str, slow: int) -> list[LiveSession]:
        paces = [2.0 + 0.01 * (n % 7) if n % 10 >= slow else 4.0 for n in range(400)]
        return [s.model_copy(update={"latency": p}) for s, p in zip(sessions(arm, 400, 0), paces, strict=True)]

    config = CanaryConfig(
        metrics=(
            HELDOUT_METRICS[0],
            Metric(name="latency", better="lower", margin=0.5, relative=True),
            Metric(name="latency_p95", better="lower", margin=0.1, scale=1.0),
        )
    )
    found = compare_all(paced("champion", 0) + paced("candidate", 3), config)
    assert found["latency"].verdict is not Verdict.FAIL
    assert found["latency_p95"].verdict is Verdict.FAIL and found["latency_p95"].n_champion == 300
    few = compare_all(paced("champion", 0)[:99] + paced("candidate", 3), config)
    assert few["latency_p95"].verdict is Verdict.INCONCLUSIVE and few["latency_p95"].lower is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"stages": ()},
        {"stages": (Stage(share=0.5), Stage(share=0.25))},
        {"stages": (Stage(share=0.5), Stage(share=1.0))},
        {"stages": (Stage(share=0.5), Stage(shadow=True)), "traffic": "live"},
        {"stages": (Stage(shadow=True), Stage(share=1.0)), "traffic": "live"},
        {"stages": (Stage(share=0.5, bake_seconds=1.0),)},
        {"approval": "before_promotion"},
        {"metrics": ()},
        {"metrics": HELDOUT_METRICS[:1] * 2},
    ],
)
def test_a_config_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"stages|live|metric"):
        CanaryConfig(**wrong)
