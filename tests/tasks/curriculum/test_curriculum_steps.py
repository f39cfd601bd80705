from __future__ import annotations

from data_contracts.problems import write_pack
from data_contracts.records import Check, Problem
from data_contracts.store import read_json, write_trajectories
from tasks.curriculum.config import CurriculumConfig
from tasks.curriculum.steps import select_problems, update_curriculum


def test_an_iteration_from_choice_to_state_and_back(make_trajectory, tmp_path):
    check, files = (Check(name="c", code="assert 0"),), {"m.py": "x = 1\n"}
    pool = [
        Problem(id=f"p{i}", prompt="p", files=files, visible=check, hidden=check, solution={"m.py": "x = 2\n"})
        for i in range(6)
    ]
    write_pack(tmp_path, pool)
    config = CurriculumConfig(problems_per_iteration=2)
    states = [tmp_path / f"state-{i}.json" for i in range(2)]
    chosen = select_problems.fn(tmp_path, states[0], tmp_path / "selection.json", 0, config, 3, 2)
    assert read_json(tmp_path / "selection.json")["problem_ids"] == list(chosen.problem_ids)
    rollouts = [make_trajectory(name, i, outcome=i == 0) for name in chosen.problem_ids for i in range(2)]
    write_trajectories(tmp_path / "trajectories.parquet", rollouts)
    for _ in range(2):
        signal = update_curriculum.fn(tmp_path, tmp_path / "trajectories.parquet", *states, 0, config)
        assert (signal.groups.groups, signal.groups.mixed) == (2, 2)
        assert sum(signal.failures.values()) == signal.failures["never_acted"] == 2
        assert {name: r["tried"] for name, r in read_json(states[1])["problems"].items()} == {
            name: 2 for name in chosen.problem_ids
        }
    later = select_problems.fn(tmp_path, states[1], tmp_path / "next.json", 1, config, 3, 2)
    assert not set(later.problem_ids) & set(chosen.problem_ids)
