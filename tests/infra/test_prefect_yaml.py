"""infra/prefect.yaml holds what `ratchet up` serves, in words that Prefect's client reads."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.cli.deploy._models import PrefectYamlModel
from prefect.events import DeploymentEventTrigger

from flows.deployments import deployed, prefect_yaml, served
from flows.recipe import Recipe, load_recipe

FILE = Path("infra/prefect.yaml")
RECIPE = load_recipe("infra/recipes/services.toml")


@pytest.fixture(scope="module")
def entries() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())["deployments"]
    return found


def test_the_file_is_what_the_list_says() -> None:
    assert FILE.read_text() == prefect_yaml(RECIPE, Path("runs")), "write it again: its first lines say how"


def test_served_and_pooled_deployments_are_the_same(entries: list[dict[str, Any]]) -> None:
    for entry, one in zip(entries, map(served, deployed(RECIPE, Path("runs"))), strict=True):
        module, _, function = entry["entrypoint"].partition(".py:")
        flow = getattr(importlib.import_module(module.replace("/", ".")), function)
        assert (flow.name, entry["name"], entry["description"]) == (one.flow_name, one.name, one.description)
        intervals = [schedule.schedule.interval.total_seconds() for schedule in one.schedules or []]
        assert [schedule["interval"] for schedule in entry.get("schedules", [])] == intervals
        limit = entry.get("concurrency_limit")
        assert (limit and (limit["limit"], limit["collision_strategy"])) == (
            one.concurrency_options and (one.concurrency_limit, one.concurrency_options.collision_strategy.value)
        )
        for written, trigger in zip(entry.get("triggers", []), one.triggers, strict=True):
            read = DeploymentEventTrigger.model_validate(written)
            assert (read.expect, read.match, read.within) == (trigger.expect, trigger.match, trigger.within)
        assert whole(entry["parameters"]) == one.parameters
        flow.validate_parameters({**entry["parameters"], **({"candidate": 2} if "canary" in flow.name else {})})


def test_prefects_own_model_of_the_file_keeps_everything(entries: list[dict[str, Any]]) -> None:
    read = PrefectYamlModel.model_validate(yaml.safe_load(FILE.read_text()))
    assert [one.entrypoint for one in read.deployments] == [entry["entrypoint"] for entry in entries]
    assert [one.work_pool.name for one in read.deployments if one.work_pool] == ["ratchet"] * len(entries)
    assert {one.name for one in read.deployments if one.schedules} == {"drift"}
    assert {one.name for one in read.deployments if one.triggers} == {"post_train"}


def whole(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters with every key of the recipe."""
    if "recipe" not in parameters:
        return parameters
    return {**parameters, "recipe": Recipe.model_validate(parameters["recipe"]).model_dump(mode="json")}
