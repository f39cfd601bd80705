"""`ratchet run`: find the run, start what it needs side by side, run the flow, show how it ended.

recipe -> run folder -> Prefect API -> post_train, which the Prefect UI can cancel -> closing table
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from data_contracts.errors import UserError
from data_contracts.gates import Gate, GateHeld
from flows import progress
from flows.cancel import RunCancelled, run_cancellable
from flows.closing import show_summary
from flows.recipe import Recipe
from flows.runs import choose_run, state_of
from flows.services import prefect_api
from models.policy import model_fault
from tasks.paths import RunFolder
from tasks.rollout.vllm_server import check_vllm
from tasks.training.config import check_sampling

DRAIN_SECONDS = 60.0

Place = Callable[..., str]
"""Where a recipe gives the value of a key, `file:line`: place("policy", "base")."""


def run_recipe(recipe: Recipe, home: Path, *, fresh: bool, place: Place) -> None:
    """Run to the end, or go on; a run that has ended is shown again.

    Raises `GateHeld` when a gate held it, `RunCancelled` when it was cancelled in the Prefect UI.
    """
    run = choose_run(home, recipe, fresh=fresh)
    console = Console(stderr=True)
    if state_of(run).get("state") in ("finished", "held"):
        summary = show_summary(run)
        console.print(f"[dim]{run.id} was run before; --fresh starts another.")
        _raise_if_held(summary.get("held"))
        return
    check_given(recipe, place)
    console.print(f"[bold]{run.id}[/] in {run.root}")
    with prefect_api(home, meanwhile=_imports) as url:
        console.print(f"[dim]Prefect UI: {url}", highlight=False)
        with progress.shown(console):
            held = _run(recipe, home, run)
    show_summary(run)
    if held is not None:
        raise held


def _run(recipe: Recipe, home: Path, run: RunFolder) -> GateHeld | None:
    """The flow; its logs and events have reached the server when this returns."""
    from flows.post_train import post_train

    try:
        with drained():
            run_cancellable(post_train, {"recipe": recipe, "home": str(home), "run": str(run.root)})
    except GateHeld as held:
        return held
    except RunCancelled as cancelled:
        raise RunCancelled(f"{run.id}: {cancelled}; the same command goes on with it.") from None
    return None


@contextmanager
def drained() -> Iterator[None]:
    """Logs and events of what runs within have reached the server when this is left, however that is."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    try:
        yield
    finally:
        APILogWorker.drain_all(timeout=DRAIN_SECONDS)
        EventsWorker.drain_all(timeout=DRAIN_SECONDS)


def check_given(recipe: Recipe, place: Place) -> None:
    """A base that is no model, a pack that is not there, two temperatures: said before anything is started."""
    if fault := model_fault(Path(recipe.policy.base)):
        message = f"policy.base = {recipe.policy.base!r} is no model folder ({fault})"
        raise UserError(f"{place('policy', 'base')}: {message}: give the folder of a saved causal language model.")
    for key in ("pack", "heldout_pack"):
        pack = getattr(recipe.curriculum, key)
        if pack is not None:
            _check_pack(pack, f"{place('curriculum', key)}: curriculum.{key} = {pack!r}")
    if recipe.rollout.engine == "vllm":
        try:
            check_vllm(recipe.rollout.vllm, recipe.training.lora_r)
        except UserError as error:
            raise UserError(f"{place('rollout', 'engine')}: {error}") from error
    try:
        check_sampling(recipe.training, temperature=recipe.rollout.temperature, top_p=recipe.rollout.top_p)
    except UserError as error:
        raise UserError(f"{place('rollout', 'temperature')}: {error}") from error


def _check_pack(pack: str, where: str) -> None:
    from data_contracts.problems import pack_file

    try:
        pack_file(pack)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _imports() -> None:
    """What the flow imports takes as long as the server's start; done meanwhile."""
    import flows.post_train  # noqa: F401


def _raise_if_held(gate: dict[str, object] | None) -> None:
    if gate:
        raise GateHeld(Gate.model_validate(gate))
