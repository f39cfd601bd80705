"""The evaluation stage as Prefect tasks."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from data_contracts.store import read_trajectories, write_json
from tasks.evaluation.paired import PairedReport, paired
from tasks.evaluation.report import EvaluationReport, by_mode, report


@task(name="report evaluation", cache_policy=NO_CACHE)
def report_evaluation(trajectories: Path, out: Path, weights: dict[str, float]) -> dict[str, EvaluationReport]:
    """Measure verified trajectories, each mode by itself, and write the reports to `out` (.json)."""
    modes = by_mode(read_trajectories(trajectories))
    reports: dict[str, EvaluationReport] = {mode: report(part, weights=weights) for mode, part in modes.items()}
    write_json(out, {mode: measured.model_dump(mode="json") for mode, measured in reports.items()})
    return reports


@task(name="compare evaluations", cache_policy=NO_CACHE)
def compare_evaluations(before: Path, after: Path, out: Path) -> dict[str, PairedReport]:
    """Pair two policies' trajectories mode by mode, and write the reports to `out` (.json)."""
    first, second = by_mode(read_trajectories(before)), by_mode(read_trajectories(after))
    reports: dict[str, PairedReport] = {
        mode: paired(first.get(mode, []), second.get(mode, [])) for mode in sorted(first.keys() | second.keys())
    }
    write_json(out, {mode: measured.model_dump(mode="json") for mode, measured in reports.items()})
    return reports
