"""`ratchet reward`: is the reward model true, and was a reward gamed?

fit RUN | calibrate RUN | sentinel RUN
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Rewards of a run: how true the reward model is, and what was gamed.", no_args_is_help=True)

Run = Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)]


@app.command()
def fit(
    run: Run,
    to: Annotated[Path, typer.Option("--to", help="Folder for the reward model.", show_default=False)],
    model: Annotated[str, typer.Option("--model", help="probe or classifier.")] = "probe",
    rollouts: Annotated[int | None, typer.Option("--rollouts", help="Default: as the recipe says.")] = None,
) -> None:
    """Fit the reward model on a run's verified rollouts once more, beside the one that it released."""
    from flows.calibration import fit_again

    _table("Is the predicted success rate true?", fit_again(run, to, model, rollouts))


@app.command()
def calibrate(
    run: Run,
    model: Annotated[
        Path | None, typer.Option("--model", help="Folder of the reward model; default: RUN/reward.")
    ] = None,
) -> None:
    """Measure the reward model on the run's held-out sessions: ECE, Brier, AUROC per horizon and policy version."""
    from flows.calibration import heldout_rows

    rows, gates = heldout_rows(run, model)
    _table("On held-out problems; 95 % in brackets", rows)
    _table("May its predictions be used as values?", gates)


@app.command()
def sentinel(run: Run) -> None:
    """What looked like a gamed reward: gates that failed, terms that were switched off, the rollouts by name."""
    from flows.summary import sentinel_rows
    from tasks.paths import RunFolder

    rows = sentinel_rows(RunFolder(run.resolve()))
    if not rows:
        typer.echo("nothing was seen")
        return
    _table("What looked like a gamed reward", rows)


def _table(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    shown = Table(title=title, title_justify="left")
    for name in rows[0] if rows else ("nothing",):
        shown.add_column(name)
    for row in rows:
        shown.add_row(*(escape(str(value)) for value in row.values()))
    Console().print(shown)
