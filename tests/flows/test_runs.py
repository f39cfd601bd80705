"""Which folder a command works in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from data_contracts.errors import UserError
from flows.recipe import Recipe
from flows.runs import all_runs, begin, choose_run, locked, mark, state_of


def test_the_same_recipe_comes_back_to_its_run_and_fresh_starts_another(tmp_path: Path) -> None:
    recipe = Recipe(name="mine")
    first = choose_run(tmp_path, recipe)
    assert first.id == f"mine-{recipe.digest[:8]}"
    assert not first.root.exists()
    begin(first, recipe)
    assert choose_run(tmp_path, recipe) == first
    second = choose_run(tmp_path, recipe, fresh=True)
    assert second.id == f"{first.id}-2"
    begin(second, recipe)
    assert choose_run(tmp_path, recipe) == second
    assert choose_run(tmp_path, Recipe(name="mine", seed=1)).id not in (first.id, second.id)


def test_the_state_keeps_when_it_began(tmp_path: Path) -> None:
    run = choose_run(tmp_path, Recipe())
    begin(run, Recipe())
    created = state_of(run)["created"]
    mark(run, "failed", why="because")
    assert state_of(run) | {"changed": ""} == {
        "id": run.id, "state": "failed", "created": created, "changed": "", "why": "because"
    }  # fmt: skip


def test_two_processes_never_work_on_one_run(tmp_path: Path) -> None:
    run = choose_run(tmp_path, Recipe())
    program = (
        "import sys; from pathlib import Path; from flows.runs import locked; from tasks.paths import RunFolder\n"
        "with locked(RunFolder(Path(sys.argv[1]))):\n print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(run.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="another process"), locked(run):
            raise AssertionError("two processes hold one run")
    finally:
        other.kill()
        other.wait()
    with locked(run):
        pass


def test_a_run_that_says_running_and_is_held_by_nobody_was_interrupted(tmp_path: Path) -> None:
    run = choose_run(tmp_path, Recipe())
    with locked(run):
        begin(run, Recipe())
        assert [state["state"] for state in all_runs(tmp_path)] == ["running"]
    assert [state["state"] for state in all_runs(tmp_path)] == ["interrupted"]
