"""`ratchet show`: a session by its id or a part of it, and what it says where that fits none or several."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from data_contracts.errors import UserError
from data_contracts.problems import write_pack
from data_contracts.records import Check, Problem, Rollout, Sampling, ToolCall, Trajectory, Turn
from data_contracts.store import write_json, write_trajectories
from flows.show import find_session, latest_run, show_session
from tasks.paths import RunFolder
from tasks.rollout.journal import Journal


def session(iteration: int, index: int, **changes: object) -> Trajectory:
    turns = (
        Turn(
            index=0, completion='<tool_call>{"name": "edit"}</tool_call> [bold]', completion_tokens=7, prompt_tokens=24,
            finish_reason="stop", calls=(ToolCall(name="edit", arguments={"line": 2, "text": "    x"}),),
            observation="error: no lines 2 to 2\nsecond", tool_failed=True, policy_digest="d", tool_seconds=0.25,
        ),
        Turn(
            index=1, completion="never", completion_tokens=3, prompt_tokens=40, finish_reason="length",
            policy_digest="d", call_errors=("error: cut",),
        ),
    )  # fmt: skip
    fields = {
        "id": f"mine-1/{iteration:05d}/double/{index}", "run_id": "mine-1", "iteration": iteration,
        "problem_id": "double", "horizon": "short", "group_id": "g", "rollout_index": index,
        "policy_version": "policy-00002", "policy_digest": "d", "status": "out_of_tokens", "detail": "no room",
        "sampling": Sampling(seed=5), "turns": turns, "prompt_ids": [], "sampled_tokens": 10, "context_tokens": 43,
        "malformed_calls": 1, "tool_errors": 1, "visible_passed": 0, "visible_total": 1, "hidden_passed": 1,
        "hidden_total": 2, "outcome": False, "rewards": {"outcome": 0.0, "format": -0.5},
    }  # fmt: skip
    return Trajectory.model_validate(fields | changes)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Iteration 0 verified, 1 sampled, 2 under way; one id is in two evaluations."""
    run = RunFolder(tmp_path / "mine-1")
    write_trajectories(run.iteration(0).trajectories, [session(0, index) for index in (1, 11, 12)])
    write_trajectories(run.iteration(1).rollouts, [session(1, 1, outcome=None, hidden_passed=None, rewards={})])
    Journal(run.iteration(2).journal).add(Rollout(trajectory=session(2, 1), segments=()))
    for side in ("after", "champion"):
        write_trajectories(run.evaluation(side).trajectories, [session(3, 0, policy_version=side)])
    check = (Check(name="c", code="assert True"),)
    problem = Problem(
        id="double", prompt="Fix double.", files={"a.py": ""}, visible=check, hidden=check, solution={"a.py": "x = 1\n"}
    )
    write_pack(run.train.parent, [problem]).rename(run.train)
    write_json(run.state, {"id": "mine-1", "state": "finished", "created": "2026-02-02"})
    return run


@pytest.mark.parametrize(
    ("wanted", "iteration", "index"),
    [
        ("mine-1/00000/double/11", 0, 11),
        ("00000/double/1", 0, 1),  # 11 and 12 only begin so
        ("double/12", 0, 12),
        ("00001", 1, 1),
        ("00002/dou", 2, 1),
    ],
)
def test_an_id_its_end_and_a_part_find_it(run: RunFolder, wanted: str, iteration: int, index: int) -> None:
    found = find_session(run, wanted)
    assert (found.iteration, found.rollout_index) == (iteration, index)


def test_one_id_in_two_evaluations_is_told_apart(run: RunFolder) -> None:
    name = "mine-1/00003/double/0"
    with pytest.raises(
        UserError, match=f"fits 2 sessions of mine-1: write more of evaluation/after:{name}, evaluation/"
    ):
        find_session(run, name)
    assert find_session(run, f"evaluation/champion:{name}").policy_version == "champion"


def test_none_and_several_are_the_users_to_mend(run: RunFolder) -> None:
    with pytest.raises(
        UserError, match=r"has no session 'mine-1/00000/doubel/11': the nearest of its 7 are mine-1/00000/"
    ):
        find_session(run, "mine-1/00000/doubel/11")
    with pytest.raises(
        UserError, match=r"'double/1' fits 3 sessions of mine-1: write more of mine-1/00000/double/1, mine"
    ):
        find_session(run, "double/1")
    empty = RunFolder(run.root.parent / "empty")
    with pytest.raises(UserError, match="holds no sessions yet"):
        find_session(empty, "x")


def test_the_latest_run_is_the_one_begun_last(run: RunFolder) -> None:
    write_json(run.root.parent / "aaa" / "run.json", {"id": "aaa", "state": "held", "created": "2026-01-01"})
    assert latest_run(run.root.parent).id == "mine-1"
    with pytest.raises(UserError, match="holds no run"):
        latest_run(run.root.parent / "nowhere")


def shown(run: RunFolder, wanted: str) -> str:
    console = Console(width=60, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    show_session(run, find_session(run, wanted), console)
    return console.export_text()


def test_a_session_is_printed_turn_by_turn(run: RunFolder) -> None:
    assert shown(run, "00000/double/1").splitlines() == [
        "mine-1/00000/double/1",
        "problem double (short), policy-00002, temperature 1, seed 5",
        "",
        "Fix double.",
        "",
        "turn 0: 7 tokens after 24; 0.00 s sampling, 0.25 s tools",
        '<tool_call>{"name": "edit"}</tool_call> [bold]',
        "-> edit(line=2, text='    x')",
        "   error: no lines 2 to 2",
        "   second",
        "",
        "turn 1: 3 tokens after 40, cut by length; 0.00 s sampling, 0.00 s tools",
        "never",
        "",
        "out_of_tokens (no room), not submitted; 2 turns, 10 tokens sampled, 1 malformed calls, 1 failed calls",
        "outcome: not solved; visible checks 0 of 1; hidden checks 1 of 2",
        "rewards: outcome 0, format -0.5",
    ]
    assert "outcome: not verified; visible checks 0 of 1" in shown(run, "00001/double/1").splitlines()
