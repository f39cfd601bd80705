"""`ratchet canary`: a candidate on real traffic, from the terminal.

start N -> the flow, here, until it has ended;  status | stop | approve | reject -> the canary of this home
"""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_contracts.errors import UserError

if TYPE_CHECKING:
    from models.registry import Registry
    from tasks.canary.standing_status import StandingStatus
    from tasks.paths import ServiceFolder

app = typer.Typer(help="A candidate on real traffic, behind the standing gateway.", no_args_is_help=True)

Home = Annotated[Path, typer.Option("--home", help="Folder that keeps runs, releases and services' state.")]
Name = Annotated[str | None, typer.Option("--name", help="The agent (release.name); default: the only one.")]
Why = Annotated[str, typer.Option("--why", help="Kept with the decision.")]
DEFAULT_HOME = Path("runs")


@app.command()
def start(
    version: Annotated[int, typer.Argument(metavar="N", help="Version of the release to try.", show_default=False)],
    recipe: Annotated[Path, typer.Option("--recipe", help="The recipe whose [canary] says how.")] = Path(
        "infra/recipes/quickstart.toml"
    ),
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe.")] = None,
    home: Home = DEFAULT_HOME,
) -> None:
    """Try release N on live traffic, or go on with its canary, until it is promoted or not.

    A newer candidate's canary takes the place of one that goes on. Ctrl-C ends the watching alone: nothing is moved
    until it is started again, and the share stays.
    """
    from flows.launch import drained
    from flows.recipe import load_recipe
    from flows.services import prefect_api

    loaded = load_recipe(recipe, ["canary.traffic=live", *(changes or [])])
    with prefect_api(home):
        from rich.console import Console

        from flows import progress
        from flows.canary_live import canary_live

        with progress.shown(Console(stderr=True)), drained():
            canary_live(version, loaded, str(home))


@app.command()
def status(
    name: Name = None,
    home: Home = DEFAULT_HOME,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show the latest canary: stage, share, sessions, each metric with its interval, what it waits for."""
    from flows.canary_status import show_canary

    _, _, found = _latest(home, name)
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        show_canary(found)


@app.command()
def stop(why: Why, name: Name = None, home: Home = DEFAULT_HOME) -> None:
    """End the canary that goes on: every new session goes to the champion again."""
    registry, _, found = _going_on(home, name)
    registry.set_trial(None, who=getpass.getuser(), why=why, only_if=found.id)
    typer.echo(f"{found.id} is rolled back: {why}")


@app.command()
def approve(name: Name = None, why: Why = "", home: Home = DEFAULT_HOME) -> None:
    """Let the candidate be promoted, once every metric that promotes has passed."""
    _answer(home, name, why, approved=True)


@app.command()
def reject(name: Name = None, why: Why = "", home: Home = DEFAULT_HOME) -> None:
    """Have the candidate rolled back at the next look."""
    _answer(home, name, why, approved=False)


def _answer(home: Path, name: str | None, why: str, *, approved: bool) -> None:
    from tasks.canary.standing_status import Answer, write_answer

    _, folder, found = _going_on(home, name)
    write_answer(folder, found.id, Answer(approved=approved, who=getpass.getuser(), why=why))
    typer.echo(f"{found.id} is {'approved' if approved else 'rejected'}; its next look acts on it")


def _going_on(home: Path, name: str | None) -> tuple[Registry, ServiceFolder, StandingStatus]:
    registry, folder, found = _latest(home, name)
    if found.ending is not None:
        raise UserError(f"no canary of {folder.name!r} goes on: {found.id} was the last, {found.ending}.")
    return registry, folder, found


def _latest(home: Path, name: str | None) -> tuple[Registry, ServiceFolder, StandingStatus]:
    """The canary that began last, as the registry has it now."""
    from models.mlflow_client import tracking_uri
    from models.registry import Registry
    from tasks.canary.standing import settled
    from tasks.canary.standing_status import all_statuses
    from tasks.paths import ServiceFolder

    home = home.resolve()
    known = sorted(folder.parent.name for folder in (home / "service").glob("*/canary"))
    if not known or (name is not None and name not in known):
        raise UserError(f"no canary{f' of {name!r}' if name else ''} in {home}: `ratchet canary start N` begins one.")
    if name is None and len(known) > 1:
        raise UserError(f"canaries of {', '.join(known)} are in {home}: give --name.")
    folder = ServiceFolder(home, name or known[0])
    registry = Registry(tracking_uri(home), home / "mlartifacts", folder.name, home=home)
    return registry, folder, settled(registry, registry.serving(), all_statuses(folder)[-1])
