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
from tasks.curriculum.overlap import Overlap, overlaps, repeated
from tasks.curriculum.selection import Selection, select
from tasks.curriculum.state import CurriculumState, IterationSignal, iteration_signal, outcomes_of, update
from tasks.curriculum.supply import write_problems
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
    twice = repeated(reading.problems)
    good, bad = intake([p for p in reading.problems if p.id not in twice], pool, on_done, config=config)
    by_id = {problem.id: problem for problem in reading.problems}
    rows = [
        (Rejection(i.line, i.id or f"line {i.line}", "readable", i.reason), {"line": i.line}) for i in reading.rejected
    ]
    found = [(result.problem_id, "intake", result.reason) for result in bad]
    found += [(name, "duplicate", f"it is {first} again: leave one out") for name, first in twice.items()]
    for name, rule, why in found:
        reason = f"{pack_file(source)}:{reading.lines[name]}: {why}"
        rows.append((Rejection(reading.lines[name], name, rule, reason), by_id[name].model_dump()))
    Quarantine(quarantine).add("problems", rows, run_id, 0)
    write_atomic(admitted, "".join(problem.model_dump_json() + "\n" for problem in good))
    return len(good), len(rows)


@task(name="contamination", cache_policy=NO_CACHE)
def drop_contaminated(train: Path, heldout: Path, quarantine: Path, config: IntakeConfig, run_id: str) -> int:
    """Put the problems of `train` that give one of `heldout` away into quarantine; how many. Again, it finds none."""
    problems = list(admitted(train).values())
    found = {each.train: each for each in overlaps(problems, list(admitted(heldout).values()), config.near_duplicate)}
    rows = [(_contaminated(found[problem.id]), problem.model_dump()) for problem in problems if problem.id in found]
    if rows:
        Quarantine(quarantine).add("problems", rows, run_id, 0)
        write_problems(train, [problem for problem in problems if problem.id not in found])
    return len(rows)


def _contaminated(overlap: Overlap) -> Rejection:
    reason = f"its solution is like that of the held-out {overlap.heldout} ({overlap.similarity:.0%} of both)"
    return Rejection(None, overlap.train, "contamination", reason)


@task(name="select", cache_policy=NO_CACHE)
def select_problems(
    problems: Path,
    state: Path,
    selection: Path,
    iteration: int,
    config: CurriculumConfig,
    seed: int,
    rollouts: int,
) -> Selection:
    """Choose the problems of an iteration and write the choice; a missing `state` is an empty one."""
    memory = CurriculumState.model_validate(read_json(state)) if state.exists() else CurriculumState()
    chosen = select(memory, list(admitted(problems).values()), iteration, config, seed, rollouts)
    write_json(selection, chosen.model_dump(mode="json"))
    return chosen


@task(name="update curriculum", cache_policy=NO_CACHE)
def update_curriculum(
    problems: Path, trajectories: Path, before: Path, after: Path, iteration: int, config: CurriculumConfig
) -> IterationSignal:
    """Write the state after an iteration; `before` and `after` are different files, so that a repeat counts once."""
    memory = CurriculumState.model_validate(read_json(before)) if before.exists() else CurriculumState()
    outcomes = outcomes_of(read_trajectories(trajectories), admitted(problems))
    write_json(after, update(memory, outcomes, iteration, config).model_dump(mode="json"))
    return iteration_signal(outcomes)
