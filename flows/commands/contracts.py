"""`ratchet contracts`: data held to its contract, versions of a contract beside each other, contracts to read.

check PATH | diff A B | docs
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Data contracts: what each table must be.", no_args_is_help=True)


@app.command()
def check(
    path: Annotated[Path, typer.Argument(help="A table's file, or a folder: a run, a problem pack, an audit log.")],
    table: Annotated[str | None, typer.Option(help="The table, where the file does not tell.")] = None,
) -> None:
    """Hold what lies there to its contract; exit code 1 when a row, or a whole table, does not hold."""
    from data_contracts.checking import check_path

    bad = False
    for file, found in check_path(path, table):
        typer.echo(f"{file}: {found.table}: {len(found.accepted)} of {len(found.source)} rows hold")
        for rejection in found.rejected:
            typer.echo(f"  {rejection.key or 'table'}: {rejection.rule}: {rejection.reason}")
        if found.skipped:
            typer.echo(f"  not asked, for want of other tables: {', '.join(found.skipped)}")
        bad = bad or bool(found.rejected)
    if bad:
        raise typer.Exit(1)


@app.command()
def diff(
    old: Annotated[str, typer.Argument(metavar="A", help="A contract: file, table, or table@version.")],
    new: Annotated[str, typer.Argument(metavar="B", help="The contract that follows it.")],
) -> None:
    """Say what changed from A to B; exit code 1 when B's version does not say that readers break."""
    from data_contracts.compatibility import changes, contract_at, refusal

    before, after = contract_at(old), contract_at(new)
    for change in changes(before, after):
        typer.echo(f"{change.weight}: {change.what}")
    if (why := refusal(before, after)) is not None:
        typer.echo(f"refused: {why}")
        raise typer.Exit(1)
    typer.echo(f"{after.name} {after.version} may follow {before.version}")


@app.command()
def docs(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("contracts.html"),
) -> None:
    """Write every contract as one HTML page: columns, bounds, rules, what is expected across batches."""
    from flows.contract_docs import write_docs

    typer.echo(write_docs(out))
