"""The `ratchet` command.

run | up | serve | gateway | status | report | show | release | canary | drift | audit | contracts | quarantine |
problems | ablate | reward | starter: the groups lie in flows/commands.

Imports are inside the commands, so that `ratchet --help` answers at once. Exit codes: 0 done, 1 a check
found some unfit, 2 a mistake of the user's (one sentence on standard error), 3 a gate held the run,
4 it was cancelled in the Prefect UI.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_contracts.errors import UserError
from flows.commands import (
    ablate,
    audit,
    canary,
    contracts,
    drift,
    gateway,
    problems,
    quarantine,
    release,
    reward,
)

if TYPE_CHECKING:
    from tasks.paths import RunFolder

HELP = """Post-train a tool-using agent on your own verifiable problems, and release it only when it is measured to be
better.

  ratchet run infra/recipes/quickstart.toml      the whole loop on a small model; no GPU is needed
  ratchet up                                     Prefect and MLflow in the browser: runs, artifacts, traces, releases
  ratchet status                                 the champion, and the runs so far
  ratchet show ROLLOUT_ID                        one session turn by turn
  ratchet problems check my-pack                 are my problems fit to train on?

A run that was interrupted goes on when the same command is given again.
"""

app = typer.Typer(help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
starter_app = typer.Typer(help="The starter model: small enough to learn on a laptop.", no_args_is_help=True)
app.add_typer(problems.app, name="problems")
app.add_typer(starter_app, name="starter")
app.add_typer(ablate.app, name="ablate")
app.add_typer(gateway.app)
app.add_typer(audit.app, name="audit")
app.add_typer(canary.app, name="canary")
app.add_typer(contracts.app, name="contracts")
app.add_typer(drift.app, name="drift")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(release.app, name="release")
app.add_typer(reward.app, name="reward")

Home = Annotated[Path, typer.Option("--home", help="Folder that keeps runs, releases and services' state.")]
DEFAULT_HOME = Path("runs")


@app.command()
def run(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a TOML file with one section a stage.", show_default=False)],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe: --set training.lora_r=8")
    ] = None,
    home: Home = DEFAULT_HOME,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start another run of a recipe that was run before.")] = False,
) -> None:
    """Run a recipe from problems to release, or go on with a run of it that was interrupted."""
    from flows.launch import run_recipe
    from flows.recipe import load_recipe, place_of

    given = changes or []
    run_recipe(load_recipe(recipe, given), home, fresh=fresh, place=lambda *keys: place_of(recipe, given, *keys))


@app.command()
def up(
    home: Home = DEFAULT_HOME,
    recipe: Annotated[
        Path, typer.Option("--recipe", help="The recipe that the form in the Prefect UI starts from.")
    ] = Path("infra/recipes/quickstart.toml"),
    prefect_port: Annotated[int, typer.Option(help="Port of the Prefect UI; 0: any free one.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="Port of the MLflow UI; 0: any free one.")] = 5000,
    gateway_port: Annotated[int, typer.Option(help="Port of the gateway; 0: any free one.")] = 8080,
) -> None:
    """Keep Prefect, MLflow, the gateway and the deployments (forms, schedules, events) up until Ctrl-C."""
    from flows.recipe import load_recipe
    from flows.up import Ports, stay_up

    load_recipe(recipe)  # a fault in it is said here, not in a log
    stay_up(home, recipe, Ports(prefect_port, mlflow_port, gateway_port))


@app.command()
def serve(
    recipe: Annotated[Path, typer.Argument(help="The recipe whose base model is served.", show_default=False)],
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe.")] = None,
    home: Home = DEFAULT_HOME,
    port: Annotated[int, typer.Option(help="Port of the first server, others follow; 0: any free ones.")] = 0,
) -> None:
    """Start a recipe's vLLM servers and print their addresses for rollout.vllm.endpoints, until Ctrl-C."""
    from flows.recipe import load_recipe
    from flows.serve import serve_recipe

    serve_recipe(load_recipe(recipe, changes or []), home, port)


@app.command()
def status(
    home: Home = DEFAULT_HOME, as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False
) -> None:
    """Show the champions (release, component versions, digests), the runs, and the services that are up."""
    from flows.status import show_status, status_of

    found = status_of(home)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        show_status(found)


@app.command()
def report(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run (`ratchet status`), or its folder.")],
    home: Home = DEFAULT_HOME,
) -> None:
    """Write a run's summary.json and report.html again, and print the summary. Works on unfinished runs too."""
    from flows.closing import show_summary
    from flows.report import write_report
    from flows.summary import write_summary

    folder = _run_folder(run_id, home)
    summary = write_summary(folder, None)
    write_report(folder, summary)
    show_summary(folder, summary)


@app.command()
def show(
    rollout_id: Annotated[str, typer.Argument(metavar="ROLLOUT_ID", help="Id of a session, or a part that is unique.")],
    run_id: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Id of a run, or its folder; default: the latest.")
    ] = None,
    home: Home = DEFAULT_HOME,
) -> None:
    """Print one session turn by turn: what was sampled and called, what came back, ending, outcome, rewards."""
    from flows.show import find_session, latest_run, show_session

    folder = latest_run(home) if run_id is None else _run_folder(run_id, home)
    show_session(folder, find_session(folder, rollout_id))


@starter_app.command("build")
def starter_build(
    out: Annotated[Path, typer.Option(help="Folder of the model.")] = Path("models/starter"),
    seed: Annotated[int, typer.Option(help="Decides demonstrations and weights.")] = 0,
) -> None:
    """Make the starter model: tokenizer, small Qwen3, warm-up on scripted demonstrations.

    Takes about 40 minutes on two cores; the result is in models/starter.
    """
    from flows import progress
    from flows.starter import build_starter

    with progress.shown():
        typer.echo(build_starter(out, seed))


def _run_folder(name: str, home: Path) -> RunFolder:
    from tasks.paths import RunFolder

    for folder in (home / name, Path(name)):
        if (folder / "recipe.json").is_file():
            return RunFolder(folder.resolve())
    known = sorted(path.parent.name for path in home.glob("*/recipe.json"))
    hint = f"known runs: {', '.join(known)}." if known else "there is none yet: give `ratchet run RECIPE` first."
    raise UserError(f"{home / name} is no run: {hint}")


def main() -> None:
    """The command's entry point: what the user can mend is one sentence and exit code 2."""
    from data_contracts.gates import GateHeld
    from flows.cancel import RunCancelled

    try:
        app()
    except UserError as error:
        print(f"ratchet: {error}", file=sys.stderr)
        sys.exit(2)
    except GateHeld as held:
        print(f"ratchet: held at {held}", file=sys.stderr)
        sys.exit(3)
    except RunCancelled as cancelled:
        print(f"ratchet: {cancelled}", file=sys.stderr)
        sys.exit(4)


if __name__ == "__main__":
    main()
