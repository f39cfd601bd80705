"""`ratchet ablate`: check what was asked for, start a Prefect API, run the arms, show the table.

recipe + arms, seeds, tokens -> ablation flow -> table on the terminal, ablation.json, ablation.html
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rich.console import Console
from rich.table import Table

from data_contracts.errors import UserError
from flows import progress
from flows.launch import Place, check_given, drained
from flows.recipe import Recipe
from flows.services import prefect_api
from tasks.credit.config import Method

if TYPE_CHECKING:
    from flows.ablation import Subject

ARMS: dict[str, tuple[str, ...]] = {"credit": get_args(Method), "curriculum": ("uniform", "signal")}
"""What may be compared, by subject."""


def ablate(
    recipe: Recipe, home: Path, subject: Subject, arms: Sequence[str], size: tuple[int, int, int], *, place: Place
) -> None:
    """Run all arms to their end, or go on with them; `size`: seeds, tokens, points. UserError for an unknown arm."""
    known, (seeds, tokens, points) = ARMS[subject], size
    if unknown := [name for name in arms if name not in known]:
        raise UserError(f"{unknown[0]}: no way of {subject} to compare: write some of {', '.join(known)}.")
    check_given(recipe, place)
    console = Console(stderr=True)
    with prefect_api(home) as url:
        from flows.ablation import Plan, ablation, folder_of

        plan = Plan(subject, tuple(name for name in known if name in arms), seeds, tokens, points)
        console.print(f"{len(plan.arms) * seeds} arms in {folder_of(recipe, home, plan)}", highlight=False)
        console.print(f"[dim]Prefect UI: {url}", highlight=False)
        with progress.shown(console), drained():
            rows = ablation(recipe, str(home), plan)
    if not rows:
        raise UserError(f"no held-out session could be scored: see the endings in {folder_of(recipe, home, plan)}.")
    shown = Table(title=f"Verified success on held-out problems after {tokens:,} sampled tokens")
    for name in rows[0]:
        shown.add_column(name)
    for row in rows:
        shown.add_row(*map(str, row.values()))
    console.print(shown)
    console.print(f"curves: {folder_of(recipe, home, plan) / 'ablation.html'}", highlight=False)
