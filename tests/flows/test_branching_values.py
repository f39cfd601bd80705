"""An iteration with branch credit through the flow's body: real sessions, sandboxes and files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect import Task

import flows.branching
import flows.reward
from data_contracts.problems import write_pack
from data_contracts.store import read_json, read_segments, read_trajectories, write_json
from flows.recipe import Recipe, load_recipe
from flows.reward import judge
from flows.rollout import training_jobs
from flows.stage import parts_of
from tasks.credit.assign import assign
from tasks.credit.branch import BranchReport
from tasks.curriculum.generator import generate
from tasks.paths import RunFolder
from tasks.rollout.batch import keep_valid
from tasks.training.scores import Score, write_scores
from tasks.workbench import Bench, open_bench

ROOT = Path(__file__).parents[2]
SETTINGS = (
    'credit.method="branch"',
    "credit.branch.decisions=4",
    "credit.branch.rollouts=2",
    f'policy.base="{ROOT / "models" / "starter"}"',
)


@pytest.fixture
def sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Bench, Recipe]]:
    """A run whose first iteration is sampled and scored."""
    for module in (flows.branching, flows.reward):  # a task run would ask for Prefect's server
        for name, value in list(vars(module).items()):
            if isinstance(value, Task):
                monkeypatch.setattr(module, name, value.fn)
    recipe = load_recipe(ROOT / "infra" / "recipes" / "smoke.toml", SETTINGS)
    run = RunFolder(tmp_path / "run")
    problems = generate(5, "train", "short", 4)
    write_pack(run.train.parent, problems).replace(run.train)
    here = run.iteration(0)
    write_json(here.selection, {"problem_ids": [problem.id for problem in problems]})
    with open_bench(run, parts_of(recipe)) as bench:
        bench.serve(0)
        rollouts = bench.stream.collect(0, training_jobs(bench, recipe, 0))
        keep_valid(rollouts, here.rollouts, here.segments, run.quarantine, run.id, 0)
        segments = read_segments(here.segments)
        drawn = [[v for v, mask in zip(s.rollout_logprobs, s.loss_mask, strict=True) if mask] for s in segments]
        # The trainer's entropies need its worker; the tokens' own surprise serves as well to choose by.
        write_scores(here.scores, segments, [Score(values, [-value for value in values]) for values in drawn])
        yield bench, recipe


def test_an_iteration_is_credited_by_branches_that_never_reach_its_batch(sampled: tuple[Bench, Recipe]) -> None:
    bench, recipe = sampled
    here = bench.run.iteration(0)
    judge(bench, recipe, 0)
    report = BranchReport.model_validate(read_json(here.branches.report))
    rollouts, branches = read_trajectories(here.trajectories), read_trajectories(here.branches.trajectories)
    assert 0 < sum(report.decisions.values()) <= 4 and report.skipped == {}
    assert report.sessions == len(branches) == 2 * len({t.group_id for t in branches})
    assert report.lost == 0 and all(t.outcome is not None for t in branches)
    assert {value for known in report.values.values() for value in known.values()} <= {0.0, 0.5, 1.0}
    turn_of = {t.id: int(t.group_id.rpartition("@")[2]) for t in branches}
    assert report.tokens == sum(turn.completion_tokens for t in branches for turn in t.turns[turn_of[t.id] :]) > 0
    batch = read_segments(here.batch)
    assert {s.trajectory_id for s in batch} == {t.id for t in rollouts}
    weights = recipe.reward.weights
    assert batch == assign(rollouts, read_segments(here.segments), recipe.credit, weights=weights, values=report.values)
    assert batch != assign(rollouts, read_segments(here.segments), recipe.credit, weights=weights, values={})

    journal = here.journal.read_bytes()
    assert len(journal.splitlines()) == len(rollouts) + len(branches)
    for lost in (here.batch, here.branches.report, here.branches.trajectories, here.branches.rollouts):
        lost.unlink()
    judge(bench, recipe, 0)
    assert here.journal.read_bytes() == journal, "nothing is sampled twice"
    assert BranchReport.model_validate(read_json(here.branches.report)) == report
    assert read_segments(here.batch) == batch
