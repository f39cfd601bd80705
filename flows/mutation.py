"""`ratchet problems mutate`: a project with tests becomes a pack.

folder -> mutants, each tried -> problems.jsonl, a table of how many were kept and why the others were not
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from data_contracts.errors import UserError
from data_contracts.problems import write_pack
from flows import progress
from tasks.curriculum.mutation import Mutation, Terms, mutate, open_project
from tasks.rollout.sandbox import WarmPool


def mutate_project(
    folder: Path, out: Path, modules: str, tests: str, terms: Terms, console: Console | None = None
) -> Path:
    """Write the problems to `out`/problems.jsonl, and print what was tried, kept and dropped."""
    project = open_project(folder, modules, tests)
    most = len(project.modules) * terms.tries
    with WarmPool(2, "verifier") as pool, progress.shown(), progress.stage("mutants", most) as tick:
        done = mutate(project, pool, terms, lambda module, _: tick(note=module))
    (console or Console()).print(_table(project.name, done))
    if not done.problems:
        raise UserError(f"no mutant of {project.name} could be used: the table says why.")
    return write_pack(out, done.problems)


def _table(name: str, done: Mutation) -> Table:
    table = Table(title=f"mutants of {name}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("what became of them")
    table.add_column("mutants", justify="right")
    kinds = Counter(tag for problem in done.problems for tag in problem.tags)
    table.add_row("tried", str(done.tried))
    table.add_row(
        "kept as problems: " + (", ".join(f"{n} {kind}" for kind, n in kinds.most_common()) or "none"),
        str(len(done.problems)),
    )
    for reason, count in done.dropped.most_common():
        table.add_row(f"dropped: {reason}", str(count))
    return table
