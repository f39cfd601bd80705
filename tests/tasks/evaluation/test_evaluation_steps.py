from __future__ import annotations

from data_contracts.records import Sampling
from data_contracts.store import read_json, write_trajectories
from tasks.evaluation.steps import compare_evaluations, report_evaluation

GREEDY = Sampling(temperature=0.0)


def test_the_steps_write_reports_mode_by_mode(make_trajectory, tmp_path):
    for side, passed in (("before", 10), ("after", 50)):
        rollouts = [make_trajectory(f"p{i}", 0, outcome=i < passed, sampling=GREEDY) for i in range(60)]
        rollouts += [make_trajectory(f"p{i}", 1, outcome=i < 10) for i in range(60)]
        write_trajectories(tmp_path / f"{side}.parquet", rollouts)
    paths = [tmp_path / "before.parquet", tmp_path / "after.parquet"]
    reports = report_evaluation.fn(paths[1], tmp_path / "report.json", {"outcome": 1.0})
    assert reports["greedy"].horizons["all"].successes == 50
    written = read_json(tmp_path / "report.json")
    assert (written["greedy"]["horizons"]["all"]["n"], written["sampled"]["horizons"]["short"]["successes"]) == (60, 10)
    compared = compare_evaluations.fn(*paths, tmp_path / "paired.json")
    assert (compared["greedy"].horizons["all"].gained, compared["sampled"].horizons["all"].gained) == (40, 0)
    assert read_json(tmp_path / "paired.json")["greedy"]["horizons"]["all"]["pairs"] == 60
