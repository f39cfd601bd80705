"""A candidate on real traffic, behind the standing gateway, until it is promoted, rolled back, held or superseded.

release + audit log -> trial moves from stage to stage -> alias moves, or stays;  seen in an artifact and in status.json
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from prefect import flow
from prefect.concurrency.sync import concurrency

from data_contracts.gates import require
from flows.asking import Asking
from flows.recipe import Recipe
from flows.stage import LiveTable, gate_rows
from models.mlflow_client import tracking_uri
from models.registry import Registry
from tasks.canary.standing import Seat, begin, watch
from tasks.canary.standing_status import StandingStatus
from tasks.paths import ServiceFolder

LIMIT = "ratchet-promoter"
"""Prefect's global concurrency limit that lets one promoter through; without such a limit the registry's lock does."""


@flow(name="canary_live", flow_run_name="canary of release {candidate}")
def canary_live(candidate: int, recipe: Recipe, home: str = "runs") -> str:
    """Try a release on what users send; run it again after a kill, and it goes on. Holds when it is not promoted."""
    seat = seat_of(Path(home).resolve(), recipe)
    status = begin(seat, candidate, recipe.canary)
    with ExitStack() as stack:
        table = LiveTable(f"canary-{status.id}")
        asking = stack.enter_context(Asking(status.id, seat.folder))

        def on_look(found: StandingStatus) -> None:
            table.show(gate_rows(found.gates), in_words(found))
            if found.waits_for == "approval":
                asking.ask()

        status = watch(seat, status, recipe.canary, on_look)
    require(status.gate())
    return str(status.ending)


def seat_of(home: Path, recipe: Recipe) -> Seat:
    """The registry and the service's folder of a recipe's agent."""
    release = recipe.release
    registry = Registry(
        tracking_uri(home),
        home / "mlartifacts",
        release.name,
        home=home,
        reference_above=release.reference_above_mb * 2**20,
    )
    promoter = partial(concurrency, LIMIT, occupy=1, timeout_seconds=recipe.canary.look_seconds)
    return Seat(registry, ServiceFolder(home, release.name), "canary on live traffic", promoter)


def in_words(status: StandingStatus) -> str:
    """Where a canary stands, in one line."""
    way = "in the shadow" if status.shadow else f"share {status.share:g}"
    sessions = " and ".join(f"{count} of the {arm}'s sessions" for arm, count in status.sessions.items())
    where = status.ending or f"stage {status.stage + 1} of {status.stages}, {way}"
    return f"release {status.candidate} against {status.champion}: {where}; {sessions}; {status.why}"
