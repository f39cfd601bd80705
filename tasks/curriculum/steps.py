"""The curriculum stage as Prefect tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from data_contracts.problems import pack_file, read_pack
from data_contracts.quarantine import Quarantine
from data_contracts.store import read_json, read_trajectories, write_atomic, write_json
from data_contracts.verdicts import Rejection
from tasks.curriculum.config import CurriculumConfig, IntakeConfig
from tasks.curriculum.intake import IntakeResult, intake
from tasks.curriculum.selection import Selection, select
from tasks.curriculum.state import CurriculumState, GroupSignal, group_signal, outcomes_of, update
from tasks.problems import admitted


@task(name="intake", cache_policy=NO_CACHE)
def check_problems(
    source: Path,
    admitted: Path,
    quarantine: Path,
    pool: Any,
    config: IntakeConfig,
    run_id: str,
    on_done: Callable[[IntakeResult], None] | None = None,
) -> tuple[int, int]:
    """Write the admitted problems of `source` to `admitted` (.jsonl), the rest to quarantine; count both."""
    reading = read_pack(source)
    good, bad = intake(reading.problems, pool, on_done, config=config)
    by_id = {problem.id: problem for problem in reading.problems}
    rows = [
        (Rejection(i.line, i.id or f"line {i.line}", "readable", i.reason), {"line": i.line}) for i in reading.rejected
    ]
    for result in bad:
        line, name = reading.lines[result.problem_id], result.problem_id
        reason = f"{pack_file(source)}:{line}: {result.reason}"
        rows.append((Rejection(line, name, "intake", reason), by_id[name].model_dump()))
    Quarantine(quarantine).add("problems", rows, run_id, 0)
    write_atomic(admitted, "".join(problem.model_dump_json() + "\n" for problem in good))
    return len(good), len(rows)


@task(name="select", cache_policy=NO_CACHE)
def select_problems(
    problems: Path, state: Path, selection: Path, iteration: int, config: CurriculumConfig, seed: int
) -> Selection:
    """Choose the problems of an iteration and write the choice; a missing `state` is an empty one."""
    memory = CurriculumState.model_validate(read_json(state)) if state.exists() else CurriculumState()
    chosen = select(memory, list(admitted(problems).values()), iteration, config, seed)
    write_json(selection, chosen.model_dump(mode="json"))
    return chosen


@task(name="update curriculum", cache_policy=NO_CACHE)
def update_curriculum(
    problems: Path, trajectories: Path, before: Path, after: Path, iteration: int, config: CurriculumConfig
) -> GroupSignal:
    """Write the state after an iteration; `before` and `after` are different files, so that a repeat counts once."""
    memory = CurriculumState.model_validate(read_json(before)) if before.exists() else CurriculumState()
    outcomes = outcomes_of(read_trajectories(trajectories), admitted(problems))
    write_json(after, update(memory, outcomes, iteration, config).model_dump(mode="json"))
    return group_signal(outcomes)
