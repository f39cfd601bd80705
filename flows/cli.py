"""The `ratchet` command.

run | up | serve | status | report | show | ablate credit | reward fit, calibrate, sentinel
problems check, make, import-verifiers | starter build

Imports are inside the commands, so that `ratchet --help` answers at once. Exit codes: 0 done, 1 `problems check`
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
from flows.commands.reward import app as reward_app

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
problems_app = typer.Typer(help="Problems: what an agent learns on and is measured by.", no_args_is_help=True)
starter_app = typer.Typer(help="The starter model: small enough to learn on a laptop.", no_args_is_help=True)
ablate_app = typer.Typer(help="Compare ways to do one thing, all else equal.", no_args_is_help=True)
app.add_typer(problems_app, name="problems")
app.add_typer(starter_app, name="starter")
app.add_typer(ablate_app, name="ablate")
app.add_typer(reward_app, name="reward")

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
) -> None:
    """Start Prefect, MLflow and the deployments (post_train by form or event, drift on a schedule), until Ctrl-C."""
    from flows.recipe import load_recipe
    from flows.up import stay_up

    load_recipe(recipe)  # a fault in it is said here, not in a log
    stay_up(home, recipe, prefect_port, mlflow_port)


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


@ablate_app.command("credit")
def ablate_credit(
    recipe: Annotated[Path, typer.Argument(help="The recipe that all arms share.", show_default=False)],
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe.")] = None,
    methods: Annotated[str, typer.Option(help="What to compare, with commas.")] = "outcome,none,process,td,branch",
    seeds: Annotated[int, typer.Option(min=1, help="Repeats of each method, from the recipe's seed.")] = 3,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens that each arm may sample for training.")] = 80_000,
    points: Annotated[int, typer.Option(min=1, help="Measurements on held-out problems after the start.")] = 2,
    home: Home = DEFAULT_HOME,
) -> None:
    """Spend the same sampled tokens with each credit method, and draw held-out success against tokens.

    An arm takes about as long as a run of so many tokens; the same command goes on after an interruption.
    """
    from flows.ablate import ablate
    from flows.recipe import load_recipe, place_of

    given = changes or []
    plan = methods.split(","), seeds, tokens, points
    ablate(load_recipe(recipe, given), home, *plan, place=lambda *keys: place_of(recipe, given, *keys))


@problems_app.command("check")
def problems_check(
    path: Annotated[Path, typer.Argument(help="A pack: a folder with problems.jsonl, or such a file.")],
) -> None:
    """Run the intake gate over a pack: does the reference solve each problem, do its checks see the fault, always?"""
    from flows.packs import check_pack

    if not check_pack(path):
        raise typer.Exit(1)


@problems_app.command("make")
def problems_make(
    out: Annotated[Path, typer.Argument(help="Folder to write problems.jsonl to.")],
    seed: Annotated[int, typer.Option(help="Decides the problems.")] = 0,
    n: Annotated[int, typer.Option("--n", min=1, help="Problems of each horizon.")] = 10,
    split: Annotated[str, typer.Option(help="train or heldout: no function is on both sides.")] = "train",
) -> None:
    """Generate repair problems: functions with injected bugs, visible and hidden tests."""
    from flows.packs import make_pack

    typer.echo(make_pack(out, seed, n, split))


@problems_app.command("import-verifiers")
def problems_import(
    taskset: Annotated[str, typer.Argument(help="Id of a taskset: the module that exports it.")],
    out: Annotated[Path, typer.Argument(help="Folder to write problems.jsonl to.")],
    config: Annotated[Path | None, typer.Option(help="The taskset's settings, as TOML.")] = None,
    solutions: Annotated[
        Path | None, typer.Option(help='Reference solutions, one a line: {"task": NAME, "turns": [...]}.')
    ] = None,
    first: Annotated[int | None, typer.Option(min=1, help="Take so many tasks; default: all.")] = None,
    solved: Annotated[float, typer.Option(help="The least reward of a solved task, up to 1.")] = 1.0,
    horizon: Annotated[str, typer.Option(help="short, medium or long.")] = "short",
    turns: Annotated[int, typer.Option(min=1, help="Messages that a rollout may send.")] = 8,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens that a rollout may sample.")] = 1024,
    seconds: Annotated[float, typer.Option(help="For one tool call, for the set-up, and for scoring.")] = 10.0,
) -> None:
    """Make problems of the tasks of a taskset for the package `verifiers`."""
    from data_contracts.records import HORIZONS, Limits
    from flows.packs import import_verifiers
    from tasks.rollout.environments.verifiers.importing import Terms

    level = next((known for known in HORIZONS if known == horizon), None)
    if level is None:
        raise UserError(f"--horizon {horizon}: write one of {', '.join(HORIZONS)}.")
    terms = Terms(Limits(turns=turns, tokens=tokens, seconds=seconds, memory_mb=1024), level, solved)
    typer.echo(import_verifiers(taskset, out, terms, config=config, solutions=solutions, first=first))


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
