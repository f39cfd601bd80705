"""`ratchet problems`: check a pack by the intake gate, make one, or import one.

pack -> intake -> table with a sentence per rejection
"""

from __future__ import annotations

import tomllib
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from data_contracts.errors import UserError
from data_contracts.problems import FILE, PackReading, read_pack, write_pack
from data_contracts.records import HORIZONS
from data_contracts.store import read_jsonl
from flows import progress
from tasks.curriculum.intake import IntakeResult, intake
from tasks.rollout.sandbox import WarmPool

if TYPE_CHECKING:
    from tasks.rollout.environments.verifiers.importing import Terms


def check_pack(path: Path, console: Console | None = None) -> bool:
    """Print the intake's verdict on a pack; whether every line of it was admitted."""
    reading = read_pack(path)
    results: dict[str, IntakeResult] = {}
    with WarmPool(2, "verifier") as pool, progress.shown(), progress.stage("intake", len(reading.problems)) as tick:

        def done(result: IntakeResult) -> None:
            results[result.problem_id] = result
            tick()

        intake(reading.problems, pool, done)
    console = console or Console()
    table = _table(path / FILE if path.is_dir() else path, reading, results)
    if table.row_count:
        console.print(table)
    admitted = sum(result.admitted for result in results.values())
    total = len(reading.problems) + len(reading.rejected)
    counts = {h: sum(p.horizon == h and results[p.id].admitted for p in reading.problems) for h in HORIZONS}
    levels = ", ".join(f"{count} {horizon}" for horizon, count in counts.items() if count)
    console.print(f"{admitted} of {total} problems admitted" + (f": {levels}" if levels else ""), highlight=False)
    return total > 0 and admitted == total


def make_pack(out: Path, seed: int, n: int, split: str) -> Path:
    """Write `n` generated problems of each horizon to `out`/problems.jsonl."""
    from tasks.curriculum.generator.problems import generate
    from tasks.curriculum.generator.split import Side

    sides: dict[str, Side] = {"train": "train", "heldout": "heldout"}
    if split not in sides:
        raise UserError(f"--split {split}: write train or heldout.")
    return write_pack(out, [problem for horizon in HORIZONS for problem in generate(seed, sides[split], horizon, n)])


def import_verifiers(
    taskset: str, out: Path, terms: Terms, *, config: Path | None, solutions: Path | None, first: int | None
) -> Path:
    """Write the tasks of a taskset of the package `verifiers` to `out`/problems.jsonl."""
    from tasks.rollout.environments.verifiers import Verifiers
    from tasks.rollout.environments.verifiers.importing import import_taskset

    given = {"config": _settings(config), "solutions": _solutions(solutions)}
    with closing(Verifiers()) as environment:
        return write_pack(out, import_taskset(environment, taskset, terms, first=first, **given))


def _settings(file: Path | None) -> dict[str, Any]:
    """A taskset's settings from a TOML file."""
    try:
        return {} if file is None else tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{file}: no settings of a taskset ({error}): give a TOML file.") from error


def _solutions(file: Path | None) -> dict[str, list[dict[str, Any]]]:
    """Reference solutions by the task's name from a file of JSON lines."""
    found: dict[str, list[dict[str, Any]]] = {}
    for number, row in enumerate(read_jsonl(file).rows if file else (), start=1):
        if not isinstance(row, dict) or set(row) != {"task", "turns"}:
            raise UserError(f'{file}:{number}: no solution: write {{"task": NAME, "turns": [...]}}.')
        found[str(row["task"])] = row["turns"]
    return found


def _table(file: Path, reading: PackReading, results: dict[str, IntakeResult]) -> Table:
    """What was rejected and why, lines that are no problem first."""
    table = Table(title=f"rejected from {file}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("line", justify="right", no_wrap=True)
    table.add_column("problem", no_wrap=True)
    table.add_column("why")
    for bad in reading.rejected:
        table.add_row(str(bad.line), bad.id or "-", escape(bad.reason.removeprefix(f"{file}:{bad.line}: ")))
    for problem in reading.problems:
        if not results[problem.id].admitted:
            table.add_row(str(reading.lines[problem.id]), problem.id, escape(results[problem.id].reason))
    return table
