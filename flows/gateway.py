"""The standing gateway of an agent: python -m flows.gateway HOME RECIPE PORT

recipe -> engine + registry + audit log -> Gateway, followed by the registry's state -> until Ctrl-C or SIGTERM
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from data_contracts.errors import UserError
from flows.recipe import Recipe, load_recipe
from flows.services import stop_asked
from flows.stage import parts_of
from models.policy import model_fault
from models.trial import Serving
from tasks.canary.audit import AuditLog
from tasks.canary.gateway import Gateway
from tasks.canary.gateway.following import Follower
from tasks.paths import RunFolder, ServiceFolder
from tasks.workbench import Bench, open_bench


def serve_gateway(recipe: Recipe, home: Path, port: int, stop: threading.Event | None = None) -> None:
    """Serve what the registry says until `stop` is set; raises RuntimeError when the engine has ended by itself."""
    stop = stop or stop_asked()
    with open_gateway(recipe, home, port) as gateway:
        Console().print(f"gateway  {gateway.url}/v1   GET /health, /metrics; Ctrl-C stops it", highlight=False)
        while not stop.wait(1.0):
            if not gateway.alive:
                raise RuntimeError("the gateway's engine ended by itself: see the log above")


@contextmanager
def open_gateway(recipe: Recipe, home: Path, port: int) -> Iterator[Gateway]:
    """The gateway of a recipe's agent, open and following the registry of `home`."""
    if fault := model_fault(Path(recipe.policy.base)):
        raise UserError(f"policy.base = {recipe.policy.base!r} is no model folder ({fault}): give a saved model.")
    config = recipe.canary.gateway.model_copy(update={"port": port})
    service = ServiceFolder(home.resolve(), recipe.release.name)
    slots = recipe.rollout.capacity if recipe.rollout.engine == "slots" else None
    with (
        open_bench(RunFolder(home.resolve() / "service"), parts_of(recipe)) as bench,
        AuditLog(service.audit, retention_days=config.retention_days) as audit,
        Gateway(
            bench.engine, bench.chat, None, audit, config, tool_format=recipe.rollout.tool_format, slots=slots
        ) as gateway,
        Follower(gateway, _reader(bench), bench.registry.release, service.audit),
    ):
        yield gateway


def _reader(bench: Bench) -> Callable[[], Serving | None]:
    """Reads the registry; a champion over another base is an error, which the gateway says in /health."""

    def read() -> Serving | None:
        serving = bench.registry.serving()
        for release in (serving.champion, serving.candidate) if serving else ():
            if release is not None and release.digests["base"] != bench.base.digest:
                raise UserError(
                    f"release {release.version} rests on another base than {bench.parts.base}: "
                    "start the gateway with the recipe that the release was made by."
                )
        return serving

    return read


def main(home: str, recipe: str, port: str) -> None:
    """As a service of `ratchet up`."""
    serve_gateway(load_recipe(recipe), Path(home), int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
