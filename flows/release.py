"""The candidate against the champion: published with its evidence when every gate passes, held otherwise.

outcomes of both -> release gate + calibration + contracts -> bundle -> <name>-release version (the alias stays)
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from data_contracts.contract import load_contract
from data_contracts.gates import Gate, require
from data_contracts.records import RECORDS, policy_name
from data_contracts.store import read_json, read_trajectories, write_json
from flows.recipe import Recipe
from flows.stage import at_work, clock, gate_rows, keep_gates, kept_gates, show_table
from models.fingerprint import digest_folder
from models.release import Bundle, file_digest
from models.reward_classifier import FOLDER
from tasks.evaluation.report import by_mode
from tasks.release.publish import Outcomes, code_revision, outcomes_by_problem
from tasks.release.steps import bootstrap, collect, judge, publish
from tasks.workbench import Bench


@flow(name="release", flow_run_name="release")
def release(run: str) -> None:
    """Gate the last policy and publish it as a release; which one serves is the canary's to decide."""
    with at_work(run) as (bench, recipe):
        if bench.run.release.exists():
            return
        with clock(bench.run, "release"):
            champion = first_champion(bench, recipe)
            verdict = judge(_outcomes(bench, against(bench)), _outcomes(bench, "after"), recipe.release)
            gates = _evidence(bench, keep_gates(bench.run, "release", [verdict]))
            show_table("release-gates", gate_rows(gates), "May this policy be released?")
            require(*gates)  # here, since the task's retries are for MLflow, not for a verdict
            candidate = publish(bench.registry, _bundle(bench, recipe, recipe.iterations, champion), gates)
            collect(bench.registry, recipe.release)
            write_json(bench.run.release, candidate.summary() | {"compared_with": champion})


def first_champion(bench: Bench, recipe: Recipe) -> int:
    """The version of the champion; where there is none, the first policy without a reward model becomes it."""
    bench.champion()  # one that rests on another base is refused here
    return bootstrap(bench.registry, _bundle(bench, recipe, 0, 0)).version


def against(bench: Bench) -> str:
    """The evaluation that shows the champion: `before`, when the run started from the champion's very weights."""
    champion = bench.champion()
    same = champion is not None and champion.digests["policy"] == digest_folder(bench.policy(0))
    return "before" if same else "champion"


def _outcomes(bench: Bench, side: str) -> Outcomes:
    """Success by problem, sampled at the serving temperature; greedy where nothing else was measured."""
    modes = by_mode(read_trajectories(bench.run.evaluation(side).trajectories))
    return outcomes_by_problem(modes.get("sampled") or modes.get("greedy") or [])


def _evidence(bench: Bench, gates: list[Gate]) -> list[Gate]:
    """Everything a release rests on."""
    stages = ("evaluation-after", "calibration")
    return gates + [gate for stage in stages for gate in kept_gates(bench.run.gates / f"{stage}.json")]


def _bundle(bench: Bench, recipe: Recipe, number: int, compared_with: int) -> Bundle:
    policy = bench.policy(number)
    fitted = bench.run.reward if (bench.run.reward / FOLDER).exists() else bench.run.probe
    reward = fitted if number and fitted.exists() else None
    return Bundle(
        run_id=bench.run.id,
        base_path=Path(recipe.policy.base).resolve(),
        base_digest=bench.base.digest,
        policy_path=policy,
        policy_version=policy_name(number),
        policy_digest=digest_folder(policy),
        reward_path=reward,
        reward_digest=read_json(bench.run.calibration)["digest"] if reward else None,
        datasets={path.stem: file_digest(path) for path in (bench.run.train, bench.run.heldout)},
        contract_versions={table: load_contract(table).version for table in RECORDS},
        recipe=read_json(bench.run.recipe),
        code_revision=code_revision(Path(__file__).parent),
        reference=bench.run.evaluation("after" if number else "before").reference,
        compared_with=compared_with,
    )
