"""`ratchet up`: Prefect, MLflow, the gateway and the deployments, kept up until Ctrl-C.

Prefect server + MLflow server + gateway + a process that serves the deployments -> their addresses

One that ends by itself is started again at its address; one that ends too often ends all.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from data_contracts.errors import UserError
from flows.recipe import load_recipe
from flows.services import (
    announced,
    deployments_plan,
    gateway_plan,
    let_go,
    mlflow_plan,
    port_or_free,
    prefect_plan,
    running,
    sole_keeper,
    stop_asked,
)
from tasks.keeper import Keeper, ServiceLost


class Ports(NamedTuple):
    """Where the services listen; 0 takes any free port."""

    prefect: int = 4200
    mlflow: int = 5000
    gateway: int = 8080


def stay_up(home: Path, recipe: Path, ports: Ports) -> None:
    """Keep the services of a home up until Ctrl-C or SIGTERM; a service that can not be kept up is a UserError."""
    home.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with sole_keeper(home) as sole:
        if not sole:
            console.print(f"already up for {home}: {running(home)}")
            return
        let_go(home)
        try:
            _keep(home, recipe, ports, console)
        except ServiceLost as lost:
            raise UserError(f"{lost}\nratchet: mend that, and give `ratchet up` again: it goes on.") from lost


def _keep(home: Path, recipe: Path, ports: Ports, console: Console) -> None:
    prefect = prefect_plan(home, port_or_free(ports.prefect, "the Prefect UI"), {})
    mlflow = mlflow_plan(home, port_or_free(ports.mlflow, "the MLflow UI"))
    gateway = gateway_plan(home, recipe, port_or_free(ports.gateway, "the gateway"))
    stop = stop_asked()
    with Keeper(console.print) as keeper:
        console.print(f"starting; logs are in {home / 'logs'}")
        keeper.keep(mlflow)
        keeper.keep(prefect)
        if not keeper.wait_up(stop):
            return
        keeper.keep(deployments_plan(home, recipe, prefect))
        keeper.keep(gateway, waits=True)
        with announced(home, [prefect, mlflow, gateway]):
            agent = load_recipe(recipe).release.name
            console.print(f"Prefect  {prefect.url}   flow runs, artifacts, deployments and their forms")
            console.print(f"MLflow   {mlflow.url}   metrics, traces, releases")
            console.print(f"gateway  {gateway.url}/v1   speaks OpenAI's protocol, once {agent} has a champion")
            console.print("Ctrl-C stops all of it")
            keeper.stay(stop)
