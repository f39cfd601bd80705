"""`ratchet problems stats`: what a pack holds, before anything is run.

problems.jsonl -> counts and sizes by horizon, tags, copies, solutions alike, what a split would hold out
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from data_contracts.problems import read_pack
from data_contracts.records import HORIZONS, Problem
from tasks.curriculum.overlap import family, repeated
from tasks.curriculum.supply import is_held_out


def pack_stats(path: Path) -> dict[str, Any]:
    """The figures of a pack, for tables and programs."""
    reading = read_pack(path)
    problems = reading.problems
    return {
        "problems": len(problems),
        "unreadable": len(reading.rejected),
        "copies": len(repeated(problems)),
        "different_solutions": len({family(problem) for problem in problems}),
        "would_be_held_out": sum(is_held_out(problem) for problem in problems),
        "environments": dict(Counter(problem.environment for problem in problems)),
        "tags": dict(Counter(tag for problem in problems for tag in problem.tags).most_common()),
        "horizons": {horizon: _sizes(mine) for horizon in HORIZONS if (mine := _of(problems, horizon))},
    }


def show_stats(path: Path, console: Console | None = None) -> None:
    """Print the figures of a pack."""
    found, console = pack_stats(path), console or Console()
    table = Table(title=f"{path}: {found['problems']} problems", title_justify="left", box=SIMPLE_HEAD)
    rows = list(found["horizons"].items())
    for name in ("horizon", *(rows[0][1] if rows else ())):
        table.add_column(name.replace("_", " "), justify="left" if name == "horizon" else "right")
    for horizon, sizes in rows:
        table.add_row(horizon, *map(str, sizes.values()))
    console.print(table)
    for name in ("unreadable", "copies", "different_solutions", "would_be_held_out"):
        console.print(f"{name.replace('_', ' ')}: {found[name]}", highlight=False)
    for name in ("environments", "tags"):
        told = ", ".join(f"{count} {key}" for key, count in found[name].items())
        console.print(f"{name}: {told or 'none'}", highlight=False)


def _of(problems: Sequence[Problem], horizon: str) -> list[Problem]:
    return [problem for problem in problems if problem.horizon == horizon]


def _sizes(problems: Sequence[Problem]) -> dict[str, int | float]:
    """How many, and the medians of what one holds."""
    lines = [sum(text.count("\n") for text in problem.files.values()) for problem in problems]
    return {
        "problems": len(problems),
        "files": median(len(problem.files) for problem in problems),
        "lines": median(lines),
        "visible_checks": median(len(problem.visible) for problem in problems),
        "hidden_checks": median(len(problem.hidden) for problem in problems),
        "turns": median(problem.limits.turns for problem in problems),
        "tokens": median(problem.limits.tokens for problem in problems),
    }
