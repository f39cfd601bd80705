"""`ratchet drift`: what live traffic looked like beside the release's reference.

<home>/service/<agent>/drift -> windows, verdicts, the open episode, candidates for problems
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Drift: live sessions against the reference of the release.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """With a callback, one command alone keeps its name."""


@app.command()
def status(
    home: Annotated[Path, typer.Option("--home", help="Folder that keeps runs, releases and services' state.")] = Path(
        "runs"
    ),
    last: Annotated[int, typer.Option("--last", min=1, help="Windows shown of each agent, newest first.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show the windows with their verdicts, the open episode, and how many sessions are candidates for problems."""
    found = {name: _agent(home.resolve(), name, last) for name in _agents(home.resolve())}
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    if not found:
        typer.echo("no drift was checked yet: `ratchet up` checks every hour, a run at its end")
    for name, agent in found.items():
        _show(name, agent)


def _agents(home: Path) -> list[str]:
    return sorted(path.parent.parent.name for path in home.glob("service/*/drift/ledger.jsonl"))


def _agent(home: Path, name: str, last: int) -> dict[str, Any]:
    from flows.drift import window_rows
    from tasks.curriculum.live import read_candidates
    from tasks.drift.episodes import read_ledger
    from tasks.drift.folder import DriftFolder
    from tasks.drift.telling import is_told
    from tasks.paths import ServiceFolder

    folder = DriftFolder(ServiceFolder(home, name).drift)
    ledger = read_ledger(folder.ledger)
    episodes = [
        {
            "id": episode.id,
            "reason": episode.reason,
            "opened": f"{episode.opened:%Y-%m-%d %H:%M}",
            "ended": closing.why if (closing := ledger.closings.get(episode.id)) else None,
            "told": is_told(folder, episode),
            "candidates": len(read_candidates(folder.candidates(episode.id))),
            "folder": str(folder.candidates(episode.id).parent),
        }
        for episode in ledger.episodes
    ]
    return {"windows": window_rows(ledger)[:last], "episodes": episodes}


def _show(name: str, agent: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=name, title_justify="left")
    shown = [column for column in agent["windows"][0] if column != "untold"]  # mostly the same; --json has it
    for column in shown:
        table.add_column(column, overflow="fold")
    for row in agent["windows"]:
        table.add_row(*(row[column] for column in shown))
    console.print(table)
    for episode in agent["episodes"]:
        state = f"over, {episode['ended']}" if episode["ended"] else "open"
        told = "told" if episode["told"] else "not told yet"
        console.print(f"episode {episode['id']}: {episode['reason']}; {state}; {told}", highlight=False)
        console.print(f"  {episode['candidates']} candidates in {episode['folder']}", highlight=False)
