"""`ratchet up`: Prefect, MLflow and the deployments, until Ctrl-C.

Prefect server + MLflow server + a process that serves post_train (form, event) and drift (schedule)
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from flows.services import (
    announced,
    mlflow_server,
    port_or_free,
    prefect_server,
    running,
    stay,
    stop_asked,
    supervised,
    wait_healthy,
)


def stay_up(home: Path, recipe: Path, prefect_port: int, mlflow_port: int) -> None:
    """Start the services and wait for Ctrl-C or SIGTERM, or for one of them to end."""
    home.mkdir(parents=True, exist_ok=True)
    console = Console()
    if running(home).get("prefect"):
        console.print(f"already up for {home}: {running(home)}", highlight=False)
        return
    stop = stop_asked()
    with ExitStack() as stack:
        ports = port_or_free(prefect_port, "the Prefect UI"), port_or_free(mlflow_port, "the MLflow UI")
        console.print("starting ...", highlight=False)
        mlflow = stack.enter_context(mlflow_server(home, ports[1]))
        prefect = stack.enter_context(prefect_server(home, {}, ports[0]))
        wait_healthy(mlflow)
        console.print(f"Prefect  {prefect.url}   flow runs, artifacts, the recipe as a form", highlight=False)
        console.print(f"MLflow   {mlflow.url}   metrics, traces, releases", highlight=False)
        command = [sys.executable, "-m", "flows.serving", str(home.resolve()), str(recipe.resolve())]
        api = {"PREFECT_API_URL": f"{prefect.url}/api", "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO"}
        serving = stack.enter_context(supervised("deployments", "", command, home, api))
        services = [prefect, mlflow]
        stack.enter_context(announced(home, services))
        console.print("Ctrl-C stops all of it", highlight=False)
        stay(stop, [*services, serving])
