"""What Prefect runs by form, schedule and event: one list, which `ratchet up` serves and infra/prefect.yaml holds.

recipe + home -> [Deployed] -> RunnerDeployment, or an entry for a work pool

`python -m flows.deployments RECIPE HOME` prints infra/prefect.yaml.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import EntrypointType, RunnerDeployment
from prefect.events import DeploymentEventTrigger

from flows.drift import drift_trigger
from flows.recipe import Recipe, load_recipe

DRIFT_EVERY = timedelta(hours=1)
POOL = "ratchet"
_HEAD = """\
# Deployments for a Prefect server with work pools, as `ratchet up` serves them without one. Written by
#   python -m flows.deployments infra/recipes/services.toml runs > infra/prefect.yaml
# and given to the server by
#   prefect --no-prompt deploy --all --prefect-file infra/prefect.yaml

"""


@dataclass(frozen=True, slots=True)
class Deployed:
    """One flow, with what it is run with and when. Its deployment is named as the flow is."""

    module: str
    name: str
    description: str
    parameters: dict[str, Any]
    every: timedelta | None = None
    on: DeploymentEventTrigger | None = None
    alone: bool = True
    """Whether a second run waits while one goes on; of a scheduled flow, it is left out."""

    @property
    def collision(self) -> str:
        return "CANCEL_NEW" if self.every else "ENQUEUE"


def deployed(recipe: Recipe, home: Path) -> list[Deployed]:
    """All deployments of a home."""
    parameters = {"recipe": recipe.model_dump(mode="json"), "home": str(home)}
    return [
        Deployed(
            "flows.post_train",
            "post_train",
            "Post-train a recipe's policy; released only when it is measured to be better.",
            parameters,
            on=drift_trigger(recipe, home),
        ),
        Deployed(
            "flows.canary_live",
            "canary_live",
            "Try a release on what users send: give its version. A newer candidate's canary takes over.",
            parameters,
            alone=False,
        ),
        Deployed(
            "flows.drift",
            "drift",
            "The champion's live sessions against the reference it was released with.",
            parameters,
            every=DRIFT_EVERY,
        ),
    ]


def served(one: Deployed) -> RunnerDeployment:
    """For a process that serves it, without a work pool."""
    limit = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy(one.collision))
    return RunnerDeployment.from_flow(
        getattr(import_module(one.module), one.name),
        name=one.name,
        description=one.description,
        parameters=one.parameters,
        interval=one.every,
        paused=False,
        concurrency_limit=limit if one.alone else None,
        triggers=[one.on] if one.on else [],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def pooled(one: Deployed) -> dict[str, Any]:
    """Its entry in infra/prefect.yaml; of recipes, what differs from the defaults."""
    limit = {"limit": 1, "collision_strategy": one.collision}
    return {
        "name": one.name,
        "entrypoint": f"{one.module.replace('.', '/')}.py:{one.name}",
        "description": one.description,
        "parameters": _short(one.parameters),
        "work_pool": {"name": POOL},
        **({"concurrency_limit": limit} if one.alone else {}),
        **({"schedules": [{"interval": int(one.every.total_seconds())}]} if one.every else {}),
        **({"triggers": [_trigger(one.on)]} if one.on else {}),
    }


def prefect_yaml(recipe: Recipe, home: Path) -> str:
    """The text of infra/prefect.yaml."""
    tree = {"name": "ratchetrl", "deployments": [pooled(one) for one in deployed(recipe, home)]}
    return _HEAD + yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _trigger(trigger: DeploymentEventTrigger) -> dict[str, Any]:
    told = trigger.model_dump(mode="json", exclude_defaults=True)
    return {**told, "parameters": _short(trigger.parameters or {})}


def _short(parameters: dict[str, Any]) -> dict[str, Any]:
    if "recipe" not in parameters:
        return parameters
    recipe = Recipe.model_validate_json(json.dumps(parameters["recipe"]))
    return {**parameters, "recipe": recipe.model_dump(mode="json", exclude_defaults=True)}


if __name__ == "__main__":
    print(prefect_yaml(load_recipe(sys.argv[1]), Path(sys.argv[2])), end="")
