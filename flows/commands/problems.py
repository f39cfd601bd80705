"""`ratchet problems`: check, stats, make, mutate, import-verifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from data_contracts.errors import UserError

app = typer.Typer(help="Problems: what an agent learns on and is measured by.", no_args_is_help=True)


@app.command("check")
def problems_check(
    path: Annotated[Path, typer.Argument(help="A pack: a folder with problems.jsonl, or such a file.")],
) -> None:
    """Run the intake gate over a pack: does the reference solve each problem, do its checks see the fault, always?"""
    from flows.packs import check_pack

    if not check_pack(path):
        raise typer.Exit(1)


@app.command("stats")
def problems_stats(
    path: Annotated[Path, typer.Argument(help="A pack: a folder with problems.jsonl, or such a file.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show what a pack holds: sizes by horizon, kinds, copies, and how much of it a run would hold out."""
    import json

    from flows.pack_stats import pack_stats, show_stats

    if as_json:
        typer.echo(json.dumps(pack_stats(path), indent=1))
    else:
        show_stats(path)


@app.command("make")
def problems_make(
    out: Annotated[Path, typer.Argument(help="Folder to write problems.jsonl to.")],
    seed: Annotated[int, typer.Option(help="Decides the problems.")] = 0,
    n: Annotated[int, typer.Option("--n", min=1, help="Problems of each horizon.")] = 10,
    split: Annotated[str, typer.Option(help="train or heldout: no function is on both sides.")] = "train",
) -> None:
    """Generate repair problems: functions with injected bugs, visible and hidden tests."""
    from flows.packs import make_pack

    typer.echo(make_pack(out, seed, n, split))


@app.command("mutate")
def problems_mutate(
    project: Annotated[Path, typer.Argument(help="A folder with code and its tests.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="Folder to write problems.jsonl to.", show_default=False)],
    modules: Annotated[str, typer.Option(help="Pattern of the files that get mistakes, over path or name.")] = "*.py",
    tests: Annotated[str, typer.Option(help="Pattern of the test files.")] = "test_*.py",
    per_module: Annotated[int, typer.Option(min=1, help="Problems of one module, at most.")] = 10,
    tries: Annotated[int, typer.Option(min=1, help="Mutants of one module that are tried, at most.")] = 60,
    seed: Annotated[int, typer.Option(help="Decides which mutants, and which tests are hidden.")] = 0,
    turns: Annotated[int, typer.Option(min=1, help="Messages that a rollout may send.")] = 20,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens that a rollout may sample.")] = 4096,
) -> None:
    """Put small mistakes into a project's code, and keep those that its tests tell, as problems of `workspace`.

    Tests are unittest cases, or functions test_* without arguments; they run in the sandbox, with the standard library
    and the project's own files.
    """
    from flows.mutation import mutate_project
    from tasks.curriculum.mutation import Terms

    terms = Terms(per_module=per_module, tries=tries, seed=seed, turns=turns, tokens=tokens)
    typer.echo(mutate_project(project, out, modules, tests, terms))


@app.command("import-verifiers")
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
