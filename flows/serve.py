"""`ratchet serve`: a recipe's vLLM servers, until Ctrl-C, for runs that name them in rollout.vllm.endpoints.

recipe -> vLLM servers over its base model -> their addresses, as a line for a recipe
"""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from data_contracts.errors import UserError
from flows.recipe import Recipe
from flows.services import port_or_free, stay, stop_asked
from models.policy import model_fault
from tasks.rollout.vllm_server import require_vllm, vllm_servers, wait_up


def serve_recipe(recipe: Recipe, home: Path, first_port: int) -> None:
    """Start the servers and wait for Ctrl-C or SIGTERM, or for one of them to end."""
    config = recipe.rollout.vllm
    if config.endpoints:
        raise UserError("rollout.vllm.endpoints names servers that run already: leave it out to have servers started.")
    if fault := model_fault(Path(recipe.policy.base)):
        raise UserError(f"policy.base = {recipe.policy.base!r} is no model folder ({fault}): give a saved model.")
    require_vllm(config)
    for number in range(config.servers if first_port else 0):
        port_or_free(first_port + number, f"vLLM server {number}")
    stop, console = stop_asked(), Console()
    with vllm_servers(config, recipe.policy.base, home / "logs", first_port) as services:
        console.print(f"starting {config.servers} vLLM server(s); their logs are in {home / 'logs'}", highlight=False)
        endpoints = wait_up(services, config.start_seconds, stop)
        if stop.is_set():
            return
        console.print("up; for a recipe, under [rollout.vllm]:", highlight=False)
        urls = json.dumps([endpoint.url for endpoint in endpoints])
        console.print(f"endpoints = {urls}", highlight=False, markup=False, soft_wrap=True)
        console.print("Ctrl-C stops them", highlight=False)
        stay(stop, services)
