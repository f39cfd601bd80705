"""The rollout gates, and what the stage's settings refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts.gates import Verdict
from data_contracts.records import Trajectory, Turn
from tasks.rollout.config import RolloutConfig
from tasks.rollout.gate import contract_gate, digest_gate, infrastructure_gate, mismatch_gate

Make = Callable[..., Trajectory]


def turn(index: int, digest: str) -> Turn:
    return Turn(
        index=index, completion="", completion_tokens=1, prompt_tokens=1, finish_reason="stop", policy_digest=digest
    )


@pytest.mark.parametrize(
    ("accepted", "total", "verdict"),
    [(98, 100, Verdict.PASS), (97, 100, Verdict.FAIL), (0, 0, Verdict.INCONCLUSIVE), (0, 5, Verdict.FAIL)],
)
def test_contract_share(accepted: int, total: int, verdict: Verdict) -> None:
    gate = contract_gate(accepted, total, minimum_share=0.98)
    assert gate.verdict is verdict
    assert gate.evidence["n"] == total


def test_infrastructure_failures_are_counted_by_kind(make_trajectory: Make) -> None:
    good = [make_trajectory("p", i) for i in range(17)]
    agents = [make_trajectory("p", 20, status="out_of_turns"), make_trajectory("p", 21, status="out_of_tokens")]
    lost = [make_trajectory("p", 30 + i, status="sandbox_error", outcome=None) for i in range(1)]
    gate = infrastructure_gate(good + agents + lost, maximum_share=0.05)
    assert (gate.verdict, gate.evidence["value"], gate.evidence["sandbox_error"]) == (Verdict.PASS, 0.05, 1)
    worse = infrastructure_gate([*good, *agents, *lost, *lost], maximum_share=0.05)
    assert (worse.verdict, worse.evidence["sandbox_error"]) == (Verdict.FAIL, 2)
    assert infrastructure_gate([], maximum_share=0.05).verdict is Verdict.INCONCLUSIVE


def test_every_turn_must_come_from_the_expected_weights(make_trajectory: Make) -> None:
    right = make_trajectory("p", 0, turns=(turn(0, "new"), turn(1, "new")))
    wrong = make_trajectory("p", 1, turns=(turn(0, "new"), turn(1, "base")))
    assert digest_gate([right], {"policy-00000": "new"}).verdict is Verdict.PASS
    gate = digest_gate([right, wrong], {"policy-00000": "new"})
    assert gate.verdict is Verdict.FAIL
    assert (gate.evidence["wrong"], gate.evidence["n"], gate.evidence["served"]) == (1, 4, "base")
    assert "p-1 turn 1" in gate.reason


def test_turns_of_an_older_version_are_held_to_its_own_digest(make_trajectory: Make) -> None:
    older, newer = turn(0, "old"), turn(1, "new").model_copy(update={"policy_version": "policy-00001"})
    carried = make_trajectory("p", 0, policy_version="policy-00001", turns=(newer, newer))
    mixed = carried.model_copy(update={"turns": (older.model_copy(update={"policy_version": "policy-00000"}), newer)})
    both = {"policy-00000": "old", "policy-00001": "new"}
    gate = digest_gate([carried, mixed], both)
    assert gate.verdict is Verdict.PASS
    assert (gate.evidence["turns of policy-00000"], gate.evidence["turns of policy-00001"]) == (1, 3)
    assert digest_gate([mixed], {"policy-00001": "new"}).verdict is Verdict.FAIL
    assert digest_gate([mixed], {"policy-00000": "new", "policy-00001": "new"}).verdict is Verdict.FAIL


def test_no_turns_or_no_expected_digest_prove_nothing(make_trajectory: Make) -> None:
    assert digest_gate([make_trajectory()], {"policy-00000": "new"}).verdict is Verdict.INCONCLUSIVE
    assert digest_gate([], {"policy-00000": "new"}).verdict is Verdict.INCONCLUSIVE
    assert digest_gate([make_trajectory(turns=(turn(0, ""),))], {"policy-00000": ""}).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("mean", "largest", "n", "verdict"),
    [
        (1e-4, 0.01, 10, Verdict.PASS),
        (1e-3, 0.05, 10, Verdict.PASS),
        (2e-3, 0.01, 10, Verdict.FAIL),
        (1e-4, 0.06, 10, Verdict.FAIL),
        (math.nan, 0.01, 10, Verdict.INCONCLUSIVE),
        (1e-4, None, 10, Verdict.INCONCLUSIVE),
        (math.inf, math.inf, 10, Verdict.INCONCLUSIVE),
        (-math.inf, 0.01, 10, Verdict.INCONCLUSIVE),
        (math.nan, 0.06, 10, Verdict.FAIL),
        (0.0, 0.0, 0, Verdict.INCONCLUSIVE),
    ],
)
def test_mismatch(mean: float | None, largest: float | None, n: int, verdict: Verdict) -> None:
    gate = mismatch_gate(mean, largest, n=n, mean_limit=1e-3, max_limit=0.05)
    assert gate.verdict is verdict
    assert gate.evidence["n"] == n
    assert gate.model_validate_json(gate.model_dump_json()) == gate


def test_the_cause_of_a_mismatch_is_looked_for_on_fail_alone() -> None:
    asked: list[int] = []

    def explain() -> tuple[str, str]:
        asked.append(1)
        return "temperature", "the tokens were sampled at 0.8"

    limits = {"n": 10, "mean_limit": 1e-3, "max_limit": 0.05, "figures": {"turn.0": 0.25}, "explain": explain}
    assert mismatch_gate(1e-4, 0.01, **limits).evidence["turn.0"] == 0.25
    assert mismatch_gate(math.nan, 0.01, **limits).verdict is Verdict.INCONCLUSIVE
    assert asked == []
    gate = mismatch_gate(2e-3, 0.01, **limits)
    assert (asked, gate.evidence["cause"]) == ([1], "temperature")
    assert gate.reason.endswith("; this points to temperature: the tokens were sampled at 0.8")


def test_top_p_below_one_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(ValidationError, match=r"write rollout\.top_p = 1\.0 and lower rollout\.temperature"):
        RolloutConfig(top_p=0.9)
    assert RolloutConfig(top_p=1.0).top_p == 1.0


@pytest.mark.parametrize(
    "wrong", [{"temperature": 0}, {"rollouts_per_problem": 1}, {"tool_latency_polls": -1}, {"tempreature": 1.0}]
)
def test_settings_that_can_not_train_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RolloutConfig(**wrong)


def test_every_setting_says_what_it_is() -> None:
    assert all(field.description for field in RolloutConfig.model_fields.values())
