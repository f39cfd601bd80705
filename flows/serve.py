"""`ratchet serve`: a recipe's vLLM servers, until Ctrl-C, for runs that name them in rollout.vllm.endpoints.

recipe -> vLLM servers over its base model, kept up -> their addresses, as a line for a recipe
"""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from data_contracts.errors import UserError
from flows.recipe import Recipe
from flows.services import port_or_free, stop_asked
from models.policy import model_fault
from tasks.keeper import Keeper, Patience
from tasks.rollout.vllm_server import require_vllm, vllm_plans


def serve_recipe(recipe: Recipe, home: Path, first_port: int) -> None:
    """Keep the servers up until Ctrl-C or SIGTERM; raises ServiceLost when one ends too often.

    A server that was started again is empty of adapters: runs that used it go on with the others.
    """
    config = recipe.rollout.vllm
    if config.endpoints:
        raise UserError("rollout.vllm.endpoints names servers that run already: leave it out to have servers started.")
    if fault := model_fault(Path(recipe.policy.base)):
        raise UserError(f"policy.base = {recipe.policy.base!r} is no model folder ({fault}): give a saved model.")
    require_vllm(config)
    for number in range(config.servers if first_port else 0):
        port_or_free(first_port + number, f"vLLM server {number}")
    stop, console = stop_asked(), Console(highlight=False, markup=False, soft_wrap=True)
    with Keeper(console.print, Patience(start=config.start_seconds)) as keeper:
        console.print(f"starting {config.servers} vLLM server(s); their logs are in {home / 'logs'}")
        for plan in vllm_plans(config, recipe.policy.base, home / "logs", first_port):
            keeper.keep(plan)
        if keeper.wait_up(stop):
            console.print("up; for a recipe, under [rollout.vllm]:")
            console.print(f"endpoints = {json.dumps([kept.plan.url for kept in keeper.kept])}")
            console.print("Ctrl-C stops them")
            keeper.stay(stop)
