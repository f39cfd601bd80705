"""`ratchet quarantine`: what contracts dropped, why, and the way back.

list | show ID | release ID --why
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_contracts.errors import UserError

if TYPE_CHECKING:
    from data_contracts.quarantine import Dropped
    from tasks.paths import RunFolder

app = typer.Typer(help="Quarantine: rows that broke their contract.", no_args_is_help=True)

Home = Annotated[Path, typer.Option("--home", help="Folder that keeps runs.")]
RowId = Annotated[str, typer.Argument(metavar="ID", help="Id of a row (`ratchet quarantine list`), or its start.")]
DEFAULT_HOME = Path("runs")


@app.command("list")
def list_rows(
    home: Home = DEFAULT_HOME,
    run: Annotated[str | None, typer.Option(help="Of this run alone.")] = None,
    rule: Annotated[str | None, typer.Option(help="Of this rule alone.")] = None,
) -> None:
    """List dropped rows: id, run, iteration, table, row, rule, and whether it was put back."""
    for folder, row in _rows(home):
        if run in (None, folder.id) and rule in (None, row.rule):
            mark = "  released" if row.released else ""
            typer.echo(f"{row.id}  {folder.id}  {row.iteration:05d}  {row.table}  {row.key}  {row.rule}{mark}")


@app.command()
def show(row_id: RowId, home: Home = DEFAULT_HOME) -> None:
    """Print a dropped row whole, with the rule it broke, the reason and the run."""
    _, row = _find(home, row_id)
    typer.echo(json.dumps(row._asdict(), indent=1, ensure_ascii=False))


@app.command()
def release(
    row_id: RowId,
    why: Annotated[str, typer.Option("--why", help="What makes the row right; kept with it.")],
    home: Home = DEFAULT_HOME,
) -> None:
    """Validate a row again and put its rollout back when it holds now; exit code 1, and the reason, when not."""
    from data_contracts.quarantine import Quarantine
    from data_contracts.readmission import readmit

    if not why.strip():
        raise UserError("--why is empty: say what makes the row right")
    folder, row = _find(home, row_id)
    here = folder.iteration(row.iteration)
    if row.released:
        typer.echo(f"{row.id} was released already, {row.released}")
        return
    if not here.rollouts.exists() or here.trajectories.exists():
        typer.echo(f"not released: iteration {row.iteration} of {folder.id} has no batch that is still open")
        raise typer.Exit(1)
    against = readmit(Quarantine(folder.quarantine), row, here.rollouts, here.segments, why)
    for reason in against:
        typer.echo(f"not released: {reason}")
    if against:
        raise typer.Exit(1)
    typer.echo(f"released: {row.key} is in {here.rollouts} and {here.segments.name} again")


def _rows(home: Path) -> Iterator[tuple[RunFolder, Dropped]]:
    from data_contracts.quarantine import Quarantine
    from tasks.paths import RunFolder

    for place in sorted(home.glob("*/quarantine")):
        folder = RunFolder(place.parent)
        for row in Quarantine(place).dropped():
            yield folder, row


def _find(home: Path, row_id: str) -> tuple[RunFolder, Dropped]:
    found = [(folder, row) for folder, row in _rows(home) if row.id.startswith(row_id)]
    if len(found) != 1:
        many = f"{len(found)} rows are named so" if found else "no row is named so"
        raise UserError(f"{row_id}: {many}: give an id from `ratchet quarantine list --home {home}`")
    return found[0]
