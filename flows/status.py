"""`ratchet status`: the champions, the runs, the services that are up.

home -> champions (alias in MLflow), run.json files, services.json
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.runs import all_runs
from flows.services import running


def status_of(home: Path) -> dict[str, Any]:
    """Everything `ratchet status` tells, as plain JSON values."""
    home = home.resolve()
    return {
        "home": str(home),
        "champions": {name: _champion(home, name) for name in agents_of(home)},
        "runs": all_runs(home),
        "services": running(home),
    }


def show_status(found: dict[str, Any], console: Console | None = None) -> None:
    """Print it for a person."""
    console = console or Console()
    for name, champion in found["champions"].items():
        console.print(_described(name, champion), highlight=False)
    if not found["champions"]:
        console.print("no champion yet: ratchet run infra/recipes/quickstart.toml", highlight=False)
    table = Table("run", "state", "iterations", "changed", "why")
    for run in found["runs"]:
        changed = str(run.get("changed", ""))[:16].replace("T", " ")
        table.add_row(run["id"], run["state"], str(run["iterations"]), changed, run.get("why", ""))
    if table.row_count:
        console.print(table)
    for name, url in found["services"].items():
        console.print(f"{name}: {url}", highlight=False)
    if not found["services"]:
        console.print("no services are up: ratchet up starts the Prefect and MLflow UIs", highlight=False)


def agents_of(home: Path) -> list[str]:
    """Names of the agents that runs of this home release."""
    recipes = [json.loads(path.read_text()) for path in sorted(home.glob("*/recipe.json"))]
    return sorted({recipe["release"]["name"] for recipe in recipes})


def _champion(home: Path, name: str) -> dict[str, Any] | None:
    if not (home / "mlflow.db").exists() and "MLFLOW_TRACKING_URI" not in os.environ:
        return None
    from tasks.release.opening import registry_of

    release = registry_of(home, name).champion()
    return None if release is None else release.summary() | {"run": release.manifest.run_id}


def _described(name: str, champion: dict[str, Any] | None) -> str:
    if champion is None:
        return f"{name}: no champion yet"
    lines = [f"[bold]{name}[/]: champion is release {champion['version']}, {champion['policy']} of {champion['run']}"]
    for role, part in champion["components"].items():
        lines.append(f"  {role:7} version {part['version']:<4} {part['digest']}")
    return "\n".join(lines)
