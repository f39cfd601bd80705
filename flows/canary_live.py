"""A candidate on real traffic, behind the standing gateway, until it is promoted, rolled back, held or superseded.

release + audit log -> trial moves from stage to stage -> alias moves, or stays;  seen in an artifact and in status.json
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from prefect import flow
from prefect.concurrency.sync import concurrency

from data_contracts.gates import Gate, require
from flows import progress
from flows.asking import Asking
from flows.recipe import Recipe
from flows.stage import LiveTable, gate_rows
from tasks.canary.standing import Seat, begin, watch
from tasks.canary.standing_status import StandingStatus
from tasks.paths import ServiceFolder
from tasks.release.opening import open_registry

LIMIT = "ratchet-promoter"
"""Prefect's global concurrency limit that lets one promoter through; without such a limit the registry's lock does."""


@flow(name="canary_live", flow_run_name="canary of release {candidate}")
def canary_live(candidate: int, recipe: Recipe, home: str = "runs") -> None:
    """Try a release on what users send; run it again after a kill, and it goes on. Holds when it is not promoted."""
    require(try_live(candidate, recipe, Path(home).resolve()))


def try_live(candidate: int, recipe: Recipe, home: Path) -> Gate:
    """The whole canary, within any flow run: its gate once it has ended."""
    seat = seat_of(home, recipe)
    status = begin(seat, candidate, recipe.canary)
    table = LiveTable(f"canary-{status.id}")
    with progress.stage("canary: live traffic", None) as tick, Asking(status.id, seat.folder) as asking:

        def on_look(found: StandingStatus) -> None:
            tick(0, note=found.in_words())
            table.show(gate_rows(found.gates), found.in_words())
            if found.waits_for == "approval":
                asking.ask()

        return watch(seat, status, recipe.canary, on_look).gate()


def seat_of(home: Path, recipe: Recipe) -> Seat:
    """The registry and the service's folder of a recipe's agent."""
    promoter = partial(concurrency, LIMIT, occupy=1, timeout_seconds=recipe.canary.look_seconds)
    folder = ServiceFolder(home, recipe.release.name)
    return Seat(open_registry(home, recipe.release), folder, "canary on live traffic", promoter)
