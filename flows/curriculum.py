"""Problems come in: generated or from a pack, through the intake gate, the rest to quarantine.

pack or generator -> source/<split>.jsonl -> intake -> apart from the held-out ones -> problems/{train,heldout}.jsonl
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from prefect import flow

from data_contracts.gates import Gate, require
from data_contracts.problems import read_pack
from flows import progress
from flows.recipe import Recipe
from flows.stage import at_work, clock, gate_rows, keep_gates, kept_gates, show_table
from tasks.curriculum.intake import intake_gate
from tasks.curriculum.steps import check_problems, drop_contaminated, select_problems
from tasks.curriculum.supply import split_pack, write_generated, write_problems
from tasks.workbench import Bench

Split = Literal["train", "heldout"]


@flow(name="curriculum", flow_run_name="intake")
def curriculum(run: str) -> None:
    """Admit the problems to train on and those to evaluate on; holds when too few can be used."""
    with at_work(run) as (bench, recipe):
        done = kept_gates(bench.run.gates / "intake.json")
        if not done:
            with clock(bench.run, "curriculum"):
                done = _admit_pack(bench, recipe) if _one_pack(recipe) else _admit_both(bench, recipe)
                done.append(_apart(bench, recipe))
            keep_gates(bench.run, "intake", done)
        show_table("intake", gate_rows(done), "Which share of the problems can be used")
        require(*done)


def select(bench: Bench, recipe: Recipe, iteration: int) -> None:
    """Choose the problems of one iteration from what is known when its first rollouts may begin."""
    here, known = bench.run.iteration(iteration), iteration - 1 - recipe.rollout.max_staleness
    if not here.selection.exists():
        before = bench.run.iteration(known).curriculum if known >= 0 else bench.run.root / "none"
        select_problems(
            bench.run.train,
            before,
            here.selection,
            iteration,
            recipe.curriculum,
            recipe.seed,
            recipe.rollout.rollouts_per_problem,
        )


def _one_pack(recipe: Recipe) -> bool:
    return recipe.curriculum.pack is not None and recipe.curriculum.heldout_pack is None


def _admit_pack(bench: Bench, recipe: Recipe) -> list[Gate]:
    """One pack for both: a part of what passes is held out."""
    admitted = bench.run.source("admitted")
    gate = _admit(bench, recipe, Path(str(recipe.curriculum.pack)), admitted, "pack")
    require(gate)
    for path, part in zip((bench.run.train, bench.run.heldout), split_pack(read_pack(admitted).problems), strict=True):
        write_problems(path, part)
    return [gate]


def _admit_both(bench: Bench, recipe: Recipe) -> list[Gate]:
    sides: tuple[tuple[Split, Path], ...] = (("train", bench.run.train), ("heldout", bench.run.heldout))
    return [_admit(bench, recipe, _source(bench, recipe, split), admitted, split) for split, admitted in sides]


def _apart(bench: Bench, recipe: Recipe) -> Gate:
    """No training problem gives a held-out one away; those that would go to quarantine."""
    config = recipe.curriculum.intake
    lost = 0
    if config.contaminated == "drop":
        lost = drop_contaminated(bench.run.train, bench.run.heldout, bench.run.quarantine, config, bench.run.id)
    kept = len(read_pack(bench.run.train).problems)
    return intake_gate(kept, lost, config).model_copy(update={"name": "intake.contamination"})


def _admit(bench: Bench, recipe: Recipe, source: Path, admitted: Path, what: str) -> Gate:
    total = len(read_pack(source).problems)
    config = recipe.curriculum.intake
    with progress.stage(f"intake: {what} problems", total) as tick:
        good, bad = check_problems(
            source, admitted, bench.run.quarantine, bench.verifier_pool, config, bench.run.id, lambda _: tick()
        )
        tick(0, note=f"{good} admitted, {bad} in quarantine")
    return intake_gate(good, bad, config).model_copy(update={"name": f"intake.{what}"})


def _source(bench: Bench, recipe: Recipe, split: Split) -> Path:
    """The user's pack, or generated problems."""
    pack = recipe.curriculum.pack if split == "train" else recipe.curriculum.heldout_pack
    if pack is not None:
        return Path(pack)
    source = bench.run.source(split)
    sizes = recipe.curriculum.train_problems if split == "train" else recipe.evaluation.problems
    if not source.exists():
        with progress.stage(f"generate: {split} problems", sum(sizes.values())) as tick:
            tick(write_generated(source, split, sizes, recipe.seed))
    return source
