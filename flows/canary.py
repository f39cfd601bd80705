"""Champion and candidate behind one gateway, on live sessions: promoted when it is sure, rolled back when it is worse.

published release -> gateway -> sessions over HTTP -> sequential comparison -> alias moves, or stays

Where the recipe's traffic is live, the sessions are the standing gateway's, and `canary_live` is what runs.
"""

from __future__ import annotations

from typing import Any

from prefect import flow

from data_contracts.gates import Gate, require
from data_contracts.problems import read_pack
from data_contracts.store import read_json
from flows import progress
from flows.canary_live import canary_live as canary_live  # flows/canary.py:canary_live is the deployment's entry
from flows.canary_live import try_live
from flows.recipe import Recipe
from flows.stage import at_work, clock, gate_rows, keep_gates, kept_gates, show_table
from tasks.canary.steps import canary as try_candidate
from tasks.canary.trial import CanaryReport
from tasks.workbench import Bench


@flow(name="canary", flow_run_name="canary")
def canary(run: str) -> None:
    """Try the run's release on live sessions; holds when it is not promoted."""
    with at_work(run) as (bench, recipe):
        gates = kept_gates(bench.run.gates / "canary.json")
        if not gates:
            with clock(bench.run, "canary"):
                live = recipe.canary.traffic == "live"
                gate = _on_live_traffic(bench, recipe) if live else _on_heldout(bench, recipe)
            gates = keep_gates(bench.run, "canary", [gate])
        require(*gates)


def _on_live_traffic(bench: Bench, recipe: Recipe) -> Gate:
    return try_live(read_json(bench.run.release)["version"], recipe, bench.run.home)


def _on_heldout(bench: Bench, recipe: Recipe) -> Gate:
    report = _trial(bench, recipe, read_json(bench.run.release))
    show_table("canary", gate_rows(report.decision.gates), report.decision.reason)
    return _settle(bench, report)


def _trial(bench: Bench, recipe: Recipe, published: dict[str, Any]) -> CanaryReport:
    """The sessions; a trial that has ended is read back."""
    releases = bench.registry.release(published["compared_with"]), bench.registry.release(published["version"])
    total = min(recipe.canary.max_sessions, len(read_pack(bench.run.heldout).problems))
    with progress.stage("canary: live sessions", total) as tick:
        report: CanaryReport = try_candidate(
            bench.new_engine(),
            bench.chat,
            releases,
            read_pack(bench.run.heldout).problems,
            (bench.agent_pool, bench.verifier_pool),
            recipe.canary,
            (bench.run.canary, bench.run.audit),
            lambda _: tick(),
            tool_format=recipe.rollout.tool_format,
        )
        tick(0, note=report.decision.action)
    return report


def _settle(bench: Bench, report: CanaryReport) -> Gate:
    """Move the alias to a candidate that passed; whatever else happened, it stays where it is."""
    gate, published = report.gate(), read_json(bench.run.release)
    if report.decision.action == "promote":
        bench.registry.promote(
            published["version"],
            who=f"canary of {bench.run.id}",
            why=gate.reason,
            evidence=[gate],
            compared_with=published["compared_with"],
        )
    return gate
