"""`ratchet release`: what was released, what serves and why, and the moves that a person makes.

list | show N | diff A B | promote N | rollback | quarantine N | collect
"""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_contracts.errors import UserError

if TYPE_CHECKING:
    from models.registry import Registry

app = typer.Typer(help="Releases: which one serves, why, and how to change that.", no_args_is_help=True)

Home = Annotated[Path, typer.Option("--home", help="Folder that keeps runs, releases and services' state.")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the agent, where the home has several.")]
Who = Annotated[str | None, typer.Option("--who", help="For the history; default: the login name.")]
Why = Annotated[str, typer.Option("--why", help="For the history.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
Version = Annotated[int, typer.Argument(metavar="N", help="Version of a release.", show_default=False)]
DEFAULT_HOME = Path("runs")


@app.command("list")
def list_releases(home: Home = DEFAULT_HOME, name: Name = None, as_json: AsJson = False) -> None:
    """All releases: policy, run, standing, and the last move of each with who and why."""
    from flows.commands.release_facts import all_releases
    from flows.commands.release_tables import show_releases

    registry = _registry(home, name)
    found = all_releases(registry)
    typer.echo(json.dumps(found, indent=1)) if as_json else show_releases(registry.name, found)


@app.command()
def show(version: Version, home: Home = DEFAULT_HOME, name: Name = None, as_json: AsJson = False) -> None:
    """One release: what it pins, the evidence it was published on, and its history."""
    from flows.commands.release_facts import one_release
    from flows.commands.release_tables import show_release

    found = one_release(_registry(home, name), version)
    typer.echo(json.dumps(found, indent=1)) if as_json else show_release(found)


@app.command()
def diff(a: Version, b: Version, home: Home = DEFAULT_HOME, name: Name = None, as_json: AsJson = False) -> None:
    """What is different in two releases: components, data sets, contracts, recipe keys, code, evidence."""
    from flows.commands.release_facts import difference
    from flows.commands.release_tables import show_difference

    registry = _registry(home, name)
    found = difference(registry.release(a), registry.release(b))
    typer.echo(json.dumps(found, indent=1)) if as_json else show_difference(a, b, found)


@app.command()
def promote(
    version: Version,
    why: Why = "",
    force: Annotated[bool, typer.Option("--force", help="Without evidence; the history says so. Needs --why.")] = False,
    who: Who = None,
    home: Home = DEFAULT_HOME,
    name: Name = None,
) -> None:
    """Make a release the champion, on the evidence it was published with."""
    from tasks.release.manual import promote_by_hand

    promote_by_hand(_registry(home, name), version, who=who or getpass.getuser(), why=why, force=force)
    typer.echo(f"release {version} is the champion")


@app.command()
def rollback(
    to: Annotated[int | None, typer.Option("--to", help="A former champion; default: the one before.")] = None,
    why: Why = "rolled back by hand",
    who: Who = None,
    home: Home = DEFAULT_HOME,
    name: Name = None,
) -> None:
    """Make a former champion the champion again."""
    release = _registry(home, name).rollback(to=to, who=who or getpass.getuser(), why=why)
    typer.echo(f"release {release.version} is the champion")


@app.command()
def quarantine(
    version: Version,
    why: Annotated[str, typer.Option("--why", help="Whoever tries to promote it reads this.", show_default=False)],
    lift: Annotated[bool, typer.Option("--lift", help="End the quarantine.")] = False,
    who: Who = None,
    home: Home = DEFAULT_HOME,
    name: Name = None,
) -> None:
    """Never serve a release again until that is lifted; a champion is rolled back, a trial of it ends."""
    registry, person = _registry(home, name), who or getpass.getuser()
    change = registry.lift_quarantine if lift else registry.quarantine_release
    change(version, who=person, why=why)
    champion = registry.pointers().champion
    typer.echo(f"release {version} is {'no longer ' if lift else ''}in quarantine; the champion is release {champion}")


@app.command()
def collect(
    keep_last: Annotated[int, typer.Option(min=1, help="Keep so many of the newest.")] = 10,
    keep_days: Annotated[float, typer.Option(min=0, help="Keep those younger than so many days.")] = 30,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    why: Why = "collected by hand",
    who: Who = None,
    home: Home = DEFAULT_HOME,
    name: Name = None,
) -> None:
    """Delete old releases; never one that serves, is on trial, or that a rollback could go back to."""
    person = who or getpass.getuser()
    gone = _registry(home, name).collect(keep_last=keep_last, keep_days=keep_days, who=person, why=why, dry_run=dry_run)
    done = "would be deleted" if dry_run else "deleted"
    releases = ", ".join(map(str, gone.releases)) or "none"
    typer.echo(f"releases {done}: {releases}; with them {len(gone.components)} components in {len(gone.runs)} runs")


def _registry(home: Path, name: str | None) -> Registry:
    """The registry of the agent that was named, or of the only one there is."""
    from flows.status import agents_of
    from tasks.release.config import ReleaseConfig
    from tasks.release.opening import open_registry

    known = agents_of(home)
    if name is None and len(known) != 1:
        hint = f"--name is one of {', '.join(known)}" if known else "give `ratchet run RECIPE` first"
        raise UserError(f"{home} has {len(known)} agents: {hint}.")
    return open_registry(home.resolve(), ReleaseConfig(name=name or known[0]))
