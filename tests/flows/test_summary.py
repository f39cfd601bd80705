"""summary.json and report.html of a run folder that is written by hand."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from data_contracts.gates import Gate, Verdict
from data_contracts.records import Sampling, Trajectory, Turn
from data_contracts.store import append_jsonl, write_json, write_trajectories
from flows.closing import show_summary
from flows.figures import mismatch_along, moving
from flows.recipe import Recipe
from flows.report import write_report
from flows.runs import begin
from flows.stage import clock, keep_gates
from flows.summary import all_gates, learning_note, learning_rows, write_summary
from tasks.curriculum.generator import generate
from tasks.curriculum.supply import write_problems
from tasks.evaluation.report import by_mode
from tasks.evaluation.report import report as evaluate
from tasks.paths import RunFolder

PROBLEMS = generate(5, "heldout", "short", 4)


def trajectory(place: int, *, outcome: bool, temperature: float = 1.0, iteration: int = 0) -> Trajectory:
    problem = PROBLEMS[place]
    turn = Turn(
        index=0, completion="<b>&", completion_tokens=7, prompt_tokens=9, finish_reason="stop", policy_digest="d"
    )
    return Trajectory(
        id=f"run/{iteration:05d}/{problem.id}/{temperature}",
        run_id="run",
        iteration=iteration,
        problem_id=problem.id,
        horizon="short",
        group_id=problem.id,
        rollout_index=int(temperature),
        policy_version="policy-00000",
        policy_digest="d",
        status="completed",
        sampling=Sampling(temperature=temperature),
        turns=(turn,),
        prompt_ids=[1, 2],
        sampled_tokens=7,
        context_tokens=16,
        outcome=outcome,
        rewards={"outcome": float(outcome)},
    )


def metrics(iteration: int, success: float) -> dict[str, Any]:
    return {
        "success.short": success, "success.medium": None, "success.long": None, "success.all": success,
        "rollouts.short": 8, "rollouts.medium": 0, "rollouts.long": 0, "reward": success,
        "rollouts.all": 8, "rollouts.unscorable": iteration, "tokens.sampled": 100, "training.tokens": 90,
        "mismatch.mean_abs_diff": 1e-6, "mismatch.max_abs_diff": 1e-5 * (iteration + 1),
        "groups.groups": 2, "groups.mixed": 1, "groups.all_passed": 1, "groups.all_failed": 0,
    }  # fmt: skip


def gate(name: str, verdict: Verdict = Verdict.PASS, **evidence: Any) -> Gate:
    return Gate(name=name, verdict=verdict, reason=f"{name} saw this", evidence=evidence)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "mine-12345678")
    begin(folder, Recipe(name="mine"))
    write_problems(folder.heldout, PROBLEMS)
    for side, outcomes in (("before", [True, False, False, False]), ("after", [True, True, True, False])):
        here = folder.evaluation(side)
        both = [trajectory(i, outcome=o) for i, o in enumerate(outcomes)]
        both += [trajectory(i, outcome=False, temperature=0.0) for i in range(4)]
        write_trajectories(here.trajectories, both)
        write_json(here.report, {mode: evaluate(part) for mode, part in by_mode(both).items()})
    for number, success in enumerate((0.25, 0.75)):
        here = folder.iteration(number)
        write_json(here.metrics, metrics(number, success))
        write_json(here.gates, [gate("rollout mismatch", max_abs_diff=1e-5 * (number + 1)), gate("rollout contract")])
    keep_gates(folder, "intake", [gate("intake.train")])
    return folder


def test_success_before_and_after_has_n_and_interval_and_the_modes_apart(run: RunFolder) -> None:
    summary = write_summary(run, None)
    assert json.loads(run.summary.read_text()) == summary
    before, after = (summary["success"][side]["short"] for side in ("before", "after"))
    assert (before["rate"], before["n"], after["rate"], after["n"]) == (0.25, 4, 0.75, 4)
    assert before["interval"][0] < 0.25 < before["interval"][1]
    assert summary["success"]["after"]["long"]["rate"] is None
    assert summary["success_greedy"]["after"]["short"]["rate"] == 0.0
    assert summary["mode"] == "sampled"


def test_rollouts_tokens_and_sessions_are_counted_once(run: RunFolder) -> None:
    for _ in range(2):  # a line that a killed canary wrote again
        append_jsonl(run.canary / "sessions.jsonl", json.dumps({"session": "s", "tokens": 5}))
    summary = write_summary(run, None)
    assert summary["rollouts"] == {"training": 16, "unscorable": 1, "evaluation": 16, "canary": 1}
    assert summary["tokens"] == {"sampled": 200 + 16 * 7 + 5, "sampled_for_training": 200, "trained": 180}


def test_a_stage_that_a_kill_made_run_twice_counts_with_its_last_time(run: RunFolder) -> None:
    for iteration, seconds in ((0, 5.0), (0, 2.0), (1, 3.0)):
        append_jsonl(run.seconds, json.dumps({"stage": "rollout", "iteration": iteration, "seconds": seconds}))
    assert write_summary(run, None)["seconds"] == {"rollout": 5.0}


def test_the_clock_notes_only_what_ended_well(run: RunFolder) -> None:
    with pytest.raises(RuntimeError), clock(run, "training", 0):
        raise RuntimeError
    assert not run.seconds.exists()
    with clock(run, "training", 0):
        pass
    assert json.loads(run.seconds.read_text())["stage"] == "training"


def test_iterations_gates_become_one_each_with_the_nearest_to_its_limit(run: RunFolder) -> None:
    gates = {found.name: found for found in all_gates(run)}
    assert list(gates) == ["intake.train", "rollout mismatch", "rollout contract"]
    mismatch = gates["rollout mismatch"]
    assert mismatch.verdict is Verdict.PASS
    assert (mismatch.evidence["iteration"], mismatch.evidence["passed"], mismatch.evidence["iterations"]) == (1, 2, 2)


def test_one_failed_iteration_makes_the_gate_fail(run: RunFolder) -> None:
    write_json(run.iteration(0).gates, [gate("rollout contract", Verdict.FAIL)])
    found = next(g for g in all_gates(run) if g.name == "rollout contract")
    assert (found.verdict, found.evidence["iteration"], found.evidence["passed"]) == (Verdict.FAIL, 0, 1)


def test_the_gate_that_held_the_run_is_in_the_summary(run: RunFolder) -> None:
    summary = write_summary(run, gate("release.gain", Verdict.FAIL))
    assert (summary["state"], summary["held"]["name"], summary["release"]) == ("held", "release.gain", None)


def test_learning_rows_are_in_order_and_the_note_weighs_by_rollouts(run: RunFolder) -> None:
    write_json(run.iteration(1).metrics, metrics(1, 0.75) | {"rollouts.short": 24})
    assert [row["iteration"] for row in learning_rows(run)] == [0, 1]
    assert learning_note(run, 0) == "short 62%"  # (8 x .25 + 24 x .75) / 32 = .625
    assert learning_note(run, 1) == "short 75%"


def test_moving_means_by_hand() -> None:
    assert moving([1.0, 2.0, 6.0, 4.0], window=2) == [1.0, 1.5, 4.0, 5.0]


def test_the_mismatch_along_the_trajectory_is_the_mean_of_the_first_and_of_the_last_iterations() -> None:
    rows = [{"mismatch.turn.10": 4.0, "mismatch.turn.2": 1.0 + i, "mismatch.turn.3": None} for i in range(7)]
    first, last = mismatch_along(rows, "turn", "turn").axes[0].lines
    assert (list(first.get_xdata()), list(first.get_ydata())) == ([2, 10], [3.0, 4.0])
    assert list(last.get_ydata()) == [5.0, 4.0]
    assert mismatch_along([], "turn", "turn").axes[0].lines[:] == []


class Links(HTMLParser):
    """Addresses a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href") and tag not in ("use",)]


def test_the_report_stands_alone_and_escapes_what_the_agent_wrote(run: RunFolder) -> None:
    page = write_report(run, write_summary(run, None)).read_text()
    links = Links()
    links.feed(page)
    assert [link for link in links.found if not link.startswith(("#", "data:"))] == []
    assert "@import" not in page
    assert page.count("<svg") == 6
    assert "&lt;b&gt;&amp;" in page
    assert "<b>&" not in page
    assert re.search(r"25\.0%\s*→\s*75\.0%", page)


def test_the_report_shows_every_session_of_the_last_batch(run: RunFolder) -> None:
    write_trajectories(run.iteration(0).trajectories, [trajectory(0, outcome=False)])
    unjudged = trajectory(1, outcome=True).model_copy(update={"outcome": None, "status": "verifier_error"})
    batch = [trajectory(2, outcome=True), trajectory(2, outcome=False, temperature=0.0), unjudged]
    write_trajectories(run.iteration(1).trajectories, batch)
    page = write_report(run, write_summary(run, None)).read_text()
    section = page[page.index("The batch of iteration 1") : page.index("What it cost")]
    assert section.count("<details>") == 3
    assert re.findall(r"(\d) of (\d) solved", section) == [("1", "2"), ("0", "1")]
    assert [section.count(f">{said}<") for said in ("solved", "not solved", "no verdict")] == [1, 1, 1]
    assert section.count("verifier error") == 1


def test_the_report_of_a_run_that_was_held_early_says_so(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "mine-0")
    begin(folder, Recipe(name="mine"))
    page = write_report(folder, write_summary(folder, gate("intake.train", Verdict.FAIL))).read_text()
    assert "held at intake.train" in page
    assert "No release was published" in page


def test_the_closing_table_shows_both_sides_the_gates_and_where_to_look(run: RunFolder) -> None:
    out = StringIO()
    show_summary(run, write_summary(run, None), Console(file=out, width=110))
    text = out.getvalue()
    assert re.search(r"short\s+4\s+25\.0%\s+.*75\.0%.*\+50\.0", text)
    assert "rollout mismatch" in text
    assert "ratchet up" in text
    assert str(run.report.name) in text.replace("\n", "")


def test_drift_checks_that_could_not_tell_are_one_line_and_the_others_stay(tmp_path: Path) -> None:
    verdicts = {"success": Verdict.FAIL, "turns": Verdict.PASS} | dict.fromkeys(("tokens", "mix"), Verdict.INCONCLUSIVE)
    gates = [Gate(name=f"drift_{name}", verdict=verdict, reason="r") for name, verdict in verdicts.items()]
    run = RunFolder(tmp_path)
    write_json(run.gates / "drift.json", gates)
    *told, untold = all_gates(run)
    assert told == gates[:2]
    assert (untold.name, untold.verdict) == ("drift_untold", Verdict.INCONCLUSIVE)
    assert untold.reason == "2 of 4 checks have too little to tell by: tokens, mix"
