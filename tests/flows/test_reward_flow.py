"""Which weights an iteration is credited by, and what a person is told of the sentinel: from the run's files alone."""

from __future__ import annotations

from pathlib import Path

from data_contracts.gates import Gate, Verdict
from data_contracts.store import write_json
from flows.recipe import Recipe
from flows.reward import sentinel_gates, weights_at
from flows.summary import all_gates, sentinel_rows
from tasks.paths import RunFolder
from tasks.reward.sentinel import Finding, SentinelReport

RECIPE = Recipe.model_validate(
    {"reward": {"terms": {"proxy": {"enabled": True}, "cost": {"enabled": True, "weight": 0.5}}}}
)
WEIGHTS = {"outcome": 1.0, "cost": 0.5, "proxy": 1.0}


def seen(run: RunFolder, iteration: int, verdict: Verdict, off: dict[str, str], *findings: Finding) -> None:
    gate = Gate(name="sentinel.proxy", verdict=verdict, reason=f"as of {iteration}")
    report = SentinelReport(iteration=iteration, gates=(gate,), findings=findings, sums=(), off=off)
    write_json(run.iteration(iteration).sentinel, report)


def test_a_term_goes_off_with_the_iteration_that_the_sentinel_failed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    seen(run, 0, Verdict.INCONCLUSIVE, {})
    seen(run, 1, Verdict.FAIL, {"proxy": "it rose"})
    seen(run, 2, Verdict.PASS, {"proxy": "it rose"})
    without = {name: weight for name, weight in WEIGHTS.items() if name != "proxy"}
    assert [weights_at(run, RECIPE, number) for number in range(4)] == [WEIGHTS, without, without, WEIGHTS]
    assert [gate.verdict for gate in sentinel_gates(run.iteration(1).sentinel)] == [Verdict.FAIL]
    assert sentinel_gates(run.iteration(9).sentinel) == []


def test_a_person_is_told_once_what_went_off_and_each_rollout_by_name(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    named = Finding(trajectory_id="r-1", problem_id="p", rule="early_exit", quote="a.py:2: os._exit(0)", outcome=False)
    seen(run, 0, Verdict.FAIL, {"proxy": "it rose"}, named)
    seen(run, 1, Verdict.PASS, {"proxy": "it rose"})
    assert [tuple(row.values()) for row in sentinel_rows(run)] == [
        (0, "", "sentinel.proxy", "as of 0"),
        (0, "", "switched off", "proxy: it rose"),
        (0, "r-1", "early_exit", "a.py:2: os._exit(0)"),
    ]
    (gate,) = all_gates(run)
    assert (gate.name, gate.verdict, gate.evidence["iteration"]) == ("sentinel.proxy", Verdict.FAIL, 0)
