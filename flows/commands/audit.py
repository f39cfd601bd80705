"""`ratchet audit`: is the log as it was written, what was said in a session, who was served how much.

ServiceFolder.audit, or the folder given -> verify | show | stats
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from data_contracts.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer(help="The gateway's audit log: who was served by which weights, and what was said.")

Folder = Annotated[Path | None, typer.Argument(metavar="PATH", help="The log's folder; default: that in --home.")]
Home = Annotated[Path, typer.Option("--home", help="Folder that keeps releases and the audit log.")]
Name = Annotated[str | None, typer.Option("--name", help="The agent (release.name); default: the only one in --home.")]
DEFAULT_HOME = Path("runs")


@app.command("verify")
def verify_log(
    path: Folder = None,
    home: Home = DEFAULT_HOME,
    name: Name = None,
    head: Annotated[str | None, typer.Option(help="A head noted earlier, which has to be in the chain.")] = None,
) -> None:
    """Follow the chain of hashes from the first row to the last; exit code 1 says where it breaks first."""
    from tasks.canary.audit import verify

    folder = _folder(path, home, name)
    found = verify(folder, head)
    if found.fault is not None:
        typer.echo(f"{folder / found.fault.file}, row {found.fault.row}: {found.fault.reason}")
        raise typer.Exit(1)
    removed = f", {found.removed} of them removed by retention" if found.removed else ""
    typer.echo(f"{found.rows} rows in {found.days} days{removed}: unbroken")
    typer.echo(f"head {found.head.hash}")


@app.command()
def show(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id, or a part that is unique.")],
    path: Folder = None,
    home: Home = DEFAULT_HOME,
    name: Name = None,
) -> None:
    """Print a session turn by turn: who served it, what was added, what was answered, how it ended."""
    from tasks.canary.audit import read_audit

    rows = read_audit(_folder(path, home, name))
    ids = sorted(set(rows[rows["session"].str.contains(session, regex=False)]["session"]))
    chosen = [session] if session in ids else ids
    if len(chosen) != 1:
        what = f"{len(chosen)} sessions, such as {chosen[0]} and {chosen[1]}" if chosen else "no session"
        raise UserError(f"{session!r} names {what}: give the whole id, as the header x-session-id has it.")
    for _, row in rows[rows["session"] == chosen[0]].iterrows():
        for line in _lines(row):
            typer.echo(line)


@app.command()
def stats(path: Folder = None, home: Home = DEFAULT_HOME, name: Name = None) -> None:
    """Sessions, turns, tokens, failures and outcomes by day, tenant and release."""
    from tasks.canary.audit import read_audit

    rows = read_audit(_folder(path, home, name))
    if rows.empty:
        typer.echo("no rows yet")
        return
    rows = rows.assign(day=rows["ts"].dt.date, turns=rows["kind"].eq("turn"), failed=rows["status"].ne("ok"))
    rows = rows.assign(solved=rows["outcome"].eq(True).fillna(False), lost=rows["outcome"].eq(False).fillna(False))
    table = rows.groupby(["day", "tenant", "release", "arm", "shadow"]).agg(
        sessions=("session", "nunique"),
        turns=("turns", "sum"),
        failed=("failed", "sum"),
        prompt=("prompt_tokens", "sum"),
        sampled=("completion_tokens", "sum"),
        p95=("latency", lambda seconds: round(float(seconds.quantile(0.95)), 3)),
        success=("solved", "sum"),
        failure=("lost", "sum"),
    )
    typer.echo(table.to_string())


def _lines(row: pd.Series[Any]) -> list[str]:
    """One row of a session, for a reader."""
    if row["kind"] == "outcome":
        return [f"{row['ts']:%F %T}  outcome {row['outcome']}  {row['metadata']}"]
    who = f"{row['release']} ({row['arm']}{', in shadow' if row['shadow'] else ''}, {row['digest'][:12]})"
    figures = f"{row['prompt_tokens']} + {row['completion_tokens']} tokens, {row['latency']:.3f} s"
    lines = [f"{row['ts']:%F %T}  turn {row['turn']}  {who}  {row['status']}  {figures}"]
    said = json.loads(row["prompt"] or "[]") + ([json.loads(row["completion"])] if row["completion"] else [])
    for message in said:
        lines.append(f"  {message['role']}: {message['content']}")
        for call in message.get("tool_calls", []):
            lines.append(f"    calls {call['function']['name']} {call['function']['arguments']}")
    return lines


def _folder(path: Path | None, home: Path, name: str | None) -> Path:
    from tasks.paths import ServiceFolder

    if path is not None:
        return path
    known = sorted(folder.parent.name for folder in home.glob("service/*/audit"))
    if name is None and len(known) == 1:
        name = known[0]
    if name not in known:
        hint = (
            f"give --name, one of {', '.join(known)}" if known else "start `ratchet gateway RECIPE` first, or give PATH"
        )
        raise UserError(f"{home} has no audit log of {'a gateway' if name is None else repr(name)}: {hint}.")
    return ServiceFolder(home, name).audit
