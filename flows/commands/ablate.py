"""`ratchet ablate`: credit, curriculum."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from flows.ablation import Subject

app = typer.Typer(help="Compare ways to do one thing, all else equal.", no_args_is_help=True)

Given = Annotated[Path, typer.Argument(help="The recipe that all arms share.", show_default=False)]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe.")]
Seeds = Annotated[int, typer.Option(min=1, help="Repeats of each arm, from the recipe's seed.")]
Tokens = Annotated[int, typer.Option(min=1, help="Tokens that each arm may sample for training.")]
Points = Annotated[int, typer.Option(min=1, help="Measurements on held-out problems after the start.")]
Home = Annotated[Path, typer.Option("--home", help="Folder that keeps runs, releases and services' state.")]
DEFAULT_HOME = Path("runs")


@app.command("credit")
def ablate_credit(
    recipe: Given,
    changes: Changes = None,
    methods: Annotated[str, typer.Option(help="What to compare, with commas.")] = "outcome,none,process,td,branch",
    seeds: Seeds = 3,
    tokens: Tokens = 80_000,
    points: Points = 2,
    home: Home = DEFAULT_HOME,
) -> None:
    """Spend the same sampled tokens with each credit method, and draw held-out success against tokens.

    An arm takes about as long as a run of so many tokens; the same command goes on after an interruption.
    """
    _compare("credit", recipe, changes or [], methods, (seeds, tokens, points), home)


@app.command("curriculum")
def ablate_curriculum(
    recipe: Given,
    changes: Changes = None,
    strategies: Annotated[str, typer.Option(help="What to compare, with commas.")] = "uniform,signal",
    seeds: Seeds = 3,
    tokens: Tokens = 80_000,
    points: Points = 4,
    home: Home = DEFAULT_HOME,
) -> None:
    """Spend the same sampled tokens on problems that still teach, and on any; draw held-out success against tokens."""
    _compare("curriculum", recipe, changes or [], strategies, (seeds, tokens, points), home)


def _compare(
    subject: Subject, file: Path, changes: list[str], arms: str, size: tuple[int, int, int], home: Path
) -> None:
    from flows.ablate import ablate
    from flows.recipe import load_recipe, place_of

    recipe = load_recipe(file, changes)
    ablate(recipe, home, subject, arms.split(","), size, place=lambda *keys: place_of(file, changes, *keys))
