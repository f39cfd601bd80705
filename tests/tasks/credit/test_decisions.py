"""Which decisions are sampled again, and what the sessions sampled from them say, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from data_contracts.records import Problem, Segment, Trajectory, Turn
from tasks.credit.assign import by_turn
from tasks.credit.branch import BranchPlan, BranchReport, branch_report
from tasks.credit.config import BranchConfig, CreditConfig
from tasks.credit.decisions import Decision, choose_decisions, first_edit, points, turn_entropies
from tasks.rollout.agent import Job
from tasks.rollout.branching import Point, branch_jobs

Make = Callable[..., Trajectory]


def turn(index: int, *, edits: bool = False, visible: tuple[int, int] | None = None, **changes: Any) -> Turn:
    return Turn(
        index=index, completion="", completion_tokens=3, prompt_tokens=1, finish_reason="stop", policy_digest="d",
        changed={"m.py": str(index)} if edits else {}, visible=visible, **changes,
    )  # fmt: skip


def turns(count: int) -> tuple[Turn, ...]:
    return tuple(turn(index) for index in range(count))


def test_an_edit_counts_once_a_test_has_failed(make_trajectory: Make) -> None:
    found = (
        turn(0, edits=True),
        turn(1, visible=(1, 2)),
        turn(2, purpose="summary"),
        turn(3, edits=True, visible=(1, 2)),
        turn(4, edits=True, visible=(1, 2)),
    )
    assert first_edit(make_trajectory(turns=found)) == 3, "a summary between them does not make the failure unseen"
    passed = (turn(0, edits=True), turn(1, visible=(2, 2)), turn(2, edits=True, visible=(2, 2)))
    assert first_edit(make_trajectory(turns=passed)) is None
    mended = (turn(0, visible=(0, 2)), turn(1, visible=(2, 2)), turn(2, edits=True, visible=(2, 2)))
    assert first_edit(make_trajectory(turns=mended)) is None, "what failed once may have passed since"


def test_the_points_of_a_decision_are_those_whose_value_is_not_known_anyway(make_trajectory: Make) -> None:
    trajectory = make_trajectory(turns=turns(3))
    found = [points(Decision(trajectory.id, place, "edit"), trajectory) for place in range(3)]
    assert found == [[1], [1, 2], [2]]
    alone = make_trajectory(turns=turns(1))
    assert points(Decision(alone.id, 0, "entropy"), alone) == []


def test_entropies_are_means_over_a_turns_sampled_tokens_in_any_segment() -> None:
    def segment(index: int, mask: list[int], owners: list[int]) -> Segment:
        return Segment(
            trajectory_id="t", index=index, token_ids=[1] * len(mask), loss_mask=mask,
            rollout_logprobs=[0.0] * len(mask), turn_index=owners,
        )  # fmt: skip

    parts = [segment(0, [0, 1, 1, 0, 1], [0, 0, 0, 1, 1]), segment(1, [0, 1, 1], [2, 2, 2])]
    assert turn_entropies(parts, [[0.5, 1.5, 4.0], [0.25, 0.75]]) == {"t": {0: 1.0, 1: 4.0, 2: 0.5}}


def group(make: Make, name: str, outcomes: str, **changes: Any) -> list[Trajectory]:
    """Rollouts of four turns; p passed, f failed, x could not be scored."""
    fate = {"p": {"outcome": True}, "f": {"outcome": False}, "x": {"outcome": None, "status": "engine_error"}}
    return [make(name, n, **({"turns": turns(4)} | fate[each] | changes)) for n, each in enumerate(outcomes)]


def test_groups_that_differ_come_first_and_share_the_places(make_trajectory: Make) -> None:
    batch = [
        *group(make_trajectory, "all", "pp"),
        *group(make_trajectory, "some", "pfp"),
        *group(make_trajectory, "other", "fp"),
        *group(make_trajectory, "one", "px"),
        *group(make_trajectory, "tiny", "pf", turns=turns(1)),
    ]
    entropies = {t.id: {0: 0.1, 1: 0.2 + t.rollout_index, 2: 0.1, 3: 0.1} for t in batch}
    entropies["all-0"][3] = 9.0
    config = BranchConfig(decisions=6, entropy_share=1.0)
    chosen = choose_decisions(batch, entropies, config)
    assert [d.trajectory_id for d in chosen] == ["some-2", "other-1", "some-1", "other-0", "some-0", "all-0"]
    assert [d.turn for d in chosen] == [1, 1, 1, 1, 1, 3]
    assert {d.kind for d in chosen} == {"entropy"}
    assert choose_decisions(batch[::-1], entropies, config) == chosen
    assert choose_decisions([], {}, config) == []


def test_kinds_share_the_places_and_no_turn_is_chosen_twice(make_trajectory: Make) -> None:
    worked = (turn(0, visible=(0, 1)), turn(1, edits=True, visible=(0, 1)), turn(2, visible=(1, 1)), turn(3))
    batch = group(make_trajectory, "p", "pfpf", turns=worked)
    entropies = {t.id: {0: 0.1, 1: 1.0 + t.rollout_index, 2: 0.5, 3: 0.2} for t in batch}
    chosen = choose_decisions(batch, entropies, BranchConfig(decisions=4, entropy_share=0.25))
    edits = [Decision(f"p-{n}", 1, "edit") for n in (3, 2, 1)]
    assert chosen == [*edits, Decision("p-0", 1, "entropy")]
    halves = choose_decisions(batch, entropies, BranchConfig(decisions=8, entropy_share=0.5))
    assert halves[:4] == [Decision(f"p-{n}", 1, "edit") for n in (3, 2, 1, 0)]
    assert halves[4:] == [Decision(f"p-{n}", 2, "entropy") for n in range(4)], "the next least certain turn"
    assert choose_decisions(batch, {}, BranchConfig(decisions=4, entropy_share=1.0)) == []


def plan(make_trajectory: Make, places: tuple[int, ...]) -> BranchPlan:
    """Two sessions from each point of rollout p-0, which failed."""
    problem = Problem(
        id="p", prompt="p", files={"m.py": ""}, solution={"m.py": "x"}, hidden=({"name": "c", "code": "1"},)
    )  # type: ignore[arg-type]  # fmt: skip
    trajectory = make_trajectory(outcome=False, turns=turns(4))
    job = Job(problem, "p", 0, 1, 0, "run")
    jobs = [one for place in places for one in branch_jobs(job, Point(trajectory, {}, place), 2)]
    return BranchPlan(jobs, [Decision("p-0", places[0], "edit")], {"it is gone": 2})


def test_the_value_of_a_point_is_the_mean_of_those_that_could_be_scored(make_trajectory: Make) -> None:
    made = plan(make_trajectory, (1, 2))
    assert len({job.seed for job in made.jobs} | {1}) == 5
    fates: list[dict[str, Any]] = [
        {"outcome": True}, {"outcome": None, "status": "engine_error"}, {"outcome": False}, {"outcome": True},
    ]  # fmt: skip
    branches = [
        make_trajectory("b", n, id=job.trajectory_id, turns=turns(job.point.turn + 2), **fate)
        for n, (job, fate) in enumerate(zip(made.jobs, fates, strict=True))
    ]
    report = branch_report(made, branches, {"outcome": 1.0})
    assert report.values == {"p-0": {1: 1.0, 2: 0.5}}
    assert (report.sessions, report.lost, report.decisions) == (4, 1, {"edit": 1})
    assert report.tokens == 4 * 2 * 3, "what was replayed was paid for before"
    assert report.note == "2 of 3 decisions not sampled again: it is gone (2)"
    assert BranchReport.model_validate_json(report.model_dump_json()) == report
    none = branch_report(made, branches[1:2], {"outcome": 1.0})
    assert (none.values, none.lost) == ({}, 4)


@pytest.mark.parametrize(
    ("before", "after", "credit"),
    [(True, True, [0.5, 0.0, -1.0, -1.0]), (False, False, [-0.5, 0.0, 0.0, 0.0]), (False, True, [-0.5, 1.0, -1, -1])],
)
def test_resamples_that_all_pass_or_all_fail_give_the_turns_what_they_were_worth(
    make_trajectory: Make, before: bool, after: bool, credit: list[float]
) -> None:
    """The rollout failed in a group of which half passed: 0.5 before turn 0, its reward 0 after turn 3."""
    made = plan(make_trajectory, (1, 2))
    branches = [
        make_trajectory("b", n, id=job.trajectory_id, outcome=before if job.point.turn == 1 else after)
        for n, job in enumerate(made.jobs)
    ]
    values = branch_report(made, branches, {"outcome": 1.0}).values
    batch = group(make_trajectory, "p", "fp")
    found = by_turn(batch, CreditConfig(method="branch", scale="none"), values=values)
    assert found["p-0"] == pytest.approx(credit)
    assert found["p-1"] == pytest.approx([0.5] * 4)
