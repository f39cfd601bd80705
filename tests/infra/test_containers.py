"""infra/compose.yaml and infra/kubernetes: valid by their schemas, in step with each other and with the code."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

import click
import compose_spec
import kubernetes_validate
import pytest
import typer
import yaml

from flows import cli, services
from flows.recipe import load_recipe
from tasks.rollout.vllm_server import arguments, environment

INFRA = Path("infra")
FOLDER = INFRA / "kubernetes"
KUBERNETES = "1.33"
RECIPE = load_recipe(INFRA / "recipes" / "services.toml")
SERVERS = ("prefect", "mlflow", "vllm", "gateway", "exporter", "postgres")
Tree = dict[str, Any]


def documents() -> list[Tree]:
    """All that the kustomization lists."""
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert {*listed, "kustomization.yaml"} == {file.name for file in FOLDER.glob("*.yaml")}
    return [document for name in listed for document in yaml.safe_load_all((FOLDER / name).read_text()) if document]


DOCUMENTS = documents()
PODS = {
    one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in DOCUMENTS if "template" in one.get("spec", {})
}
CONTAINERS = {name: pod["containers"][0] for name, pod in PODS.items()}
COMPOSE: Tree = yaml.safe_load((INFRA / "compose.yaml").read_text())


def kinds(kind: str) -> dict[str, Tree]:
    return {one["metadata"]["name"]: one for one in DOCUMENTS if one["kind"] == kind}


def argv_of(container: Tree) -> list[str]:
    return [*container["command"], *container.get("args", [])]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_the_schema_of_kubernetes_holds(document: Tree) -> None:
    assert kubernetes_validate.validate(document, KUBERNETES, strict=True) == KUBERNETES


def test_a_misspelt_key_is_found() -> None:
    broken = json.loads(json.dumps(kinds("Deployment")["gateway"]))
    broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        kubernetes_validate.validate(broken, KUBERNETES, strict=True)


def test_the_schema_of_compose_holds() -> None:
    read = compose_spec.PyCompose.from_yaml(yaml.safe_dump(COMPOSE))
    assert set(read.service_names()) == {*SERVERS, "worker", "trainer"}
    with pytest.raises(ValueError, match="helthcheck"):
        compose_spec.PyCompose.from_yaml("services: {a: {image: b, helthcheck: {test: x}}}")


def test_both_run_the_same_containers() -> None:
    assert set(PODS) == set(COMPOSE["services"])
    for name, service in COMPOSE["services"].items():
        image = CONTAINERS[name]["image"]
        assert service["image"] == image
        if name not in ("postgres", "vllm"):  # images of others, with entry points of their own
            assert service["command"] == CONTAINERS[name]["command"], name
    assert COMPOSE["services"]["vllm"]["command"] == CONTAINERS["vllm"]["args"]


@pytest.mark.parametrize("name", PODS)
def test_a_container_is_confined(name: str) -> None:
    pod, container = PODS[name]["securityContext"], CONTAINERS[name]["securityContext"]
    assert pod["runAsNonRoot"] is True and pod["runAsUser"] > 0
    assert container["allowPrivilegeEscalation"] is False and container["readOnlyRootFilesystem"] is True
    assert container["capabilities"] == {"drop": ["ALL"]}
    makes_sandboxes = name in ("worker", "trainer")
    assert (pod["seccompProfile"]["type"] == "Unconfined") == makes_sandboxes
    assert {"cpu", "memory"} <= CONTAINERS[name]["resources"]["requests"].keys()
    assert "memory" in CONTAINERS[name]["resources"]["limits"]


@pytest.mark.parametrize("name", PODS)
def test_mounts_are_of_volumes_that_are_there(name: str) -> None:
    claims = {
        claim["metadata"]["name"]
        for claim in kinds("StatefulSet").get(name, {}).get("spec", {}).get("volumeClaimTemplates", [])
    }
    volumes = {volume["name"]: volume for volume in PODS[name]["volumes"]}
    assert {mount["name"] for mount in CONTAINERS[name]["volumeMounts"]} == volumes.keys() | claims
    known = {"client", "databases", "services"}
    for volume in volumes.values():
        if "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] in kinds("PersistentVolumeClaim")
        assert volume.get("configMap", {}).get("name", "client") in known


@pytest.mark.parametrize("name", SERVERS)
def test_a_port_has_probes_a_service_and_a_policy(name: str) -> None:
    container, service = CONTAINERS[name], kinds("Service")[name]
    [port] = container["ports"]
    assert {"readinessProbe", "livenessProbe"} <= container.keys()
    assert COMPOSE["services"][name]["healthcheck"]["test"]
    assert service["spec"]["selector"] == {"app": name}
    assert [(one["port"], one["targetPort"]) for one in service["spec"]["ports"]] == [
        (port["containerPort"], port["name"])
    ]
    if name != "postgres":
        assert str(port["containerPort"]) in " ".join(argv_of(container))
    opened = [
        rule["port"]
        for policy in kinds("NetworkPolicy").values()
        if selects(policy["spec"]["podSelector"], name)
        for ingress in policy["spec"].get("ingress", [])
        for rule in ingress["ports"]
    ]
    assert port["containerPort"] in opened


def selects(selector: Tree, name: str) -> bool:
    if "matchLabels" in selector:
        return bool(selector["matchLabels"]["app"] == name)
    return any(name in one["values"] for one in selector.get("matchExpressions", []))


def test_health_is_asked_where_the_code_answers() -> None:
    for name, path in services.HEALTH.items():
        assert CONTAINERS[name]["readinessProbe"]["httpGet"]["path"] == path
        assert COMPOSE["services"][name]["healthcheck"]["test"][-1].endswith(path)


@pytest.mark.parametrize("name", [name for name in PODS if name != "postgres"])
def test_the_command_is_one_that_the_code_reads(name: str) -> None:
    match argv_of(CONTAINERS[name]):
        case ["ratchet", *rest]:
            parsed(typer.main.get_command(cli.app), rest)
        case ["prefect", "server", "start", *rest]:
            server = importlib.import_module("prefect.cli.server")
            known = inspect.signature(server.start).parameters
            assert {word.removeprefix("--") for word in rest if word.startswith("--")} <= known.keys()
        case ["mlflow", *rest]:
            parsed(importlib.import_module("mlflow.cli").cli, rest)
        case ["python", "-m", module, *rest]:
            assert importlib.util.find_spec(module) is not None
            inspect.signature(importlib.import_module(module).main).bind(*rest)
            if len(rest) > 1 and rest[1].endswith(".toml"):
                assert Path(rest[1]).is_file()
        case ["python3", "-m", "vllm.entrypoints.openai.api_server", *rest]:
            ours = arguments(RECIPE.rollout.vllm, "/app/runs/base", 8000)
            on_gpus = [word for word in ours if word != "--no-enable-chunked-prefill"]
            assert rest == [word.replace("127.0.0.1", "0.0.0.0") for word in on_gpus]
        case other:
            raise AssertionError(f"nobody reads {other}")


def parsed(command: click.Command, words: list[str]) -> None:
    """Down to the last command, without running it."""
    context = command.make_context("", words, resilient_parsing=False)
    while isinstance(command, click.Group):
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[assignment]
        context = command.make_context(name, words, parent=context)


def test_what_is_set_is_read_by_somebody() -> None:
    from mlflow import environment_variables
    from prefect.settings import Settings
    from prefect.settings.legacy import _get_valid_setting_names

    read = {
        *_get_valid_setting_names(Settings),
        *dir(environment_variables),
        *environment(RECIPE.rollout.vllm, 0),
        *services.NO_TELEMETRY,
        *services.CLIENT,
        "MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION",  # options of `mlflow server`
        "POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD", "POSTGRES_PASSWORD_FILE", "PGDATA", "HOME",
    }  # fmt: skip
    inside = {one["name"] for container in CONTAINERS.values() for one in container.get("env", [])}
    inside |= kinds("ConfigMap")["client"]["data"].keys()
    outside = {name for service in COMPOSE["services"].values() for name in service.get("environment", {})}
    assert (inside | outside) - read == set()
    assert kinds("ConfigMap")["client"]["data"] == COMPOSE["x-client"]


def test_no_secret_is_written_down() -> None:
    for container in CONTAINERS.values():
        for one in container.get("env", []):
            secret = any(word in one["name"] for word in ("PASSWORD", "CONNECTION", "STORE_URI"))
            assert secret == ("secretKeyRef" in one.get("valueFrom", {})), one["name"]
    assert [one["kind"] for one in DOCUMENTS if one["kind"] == "Secret"] == []
    assert COMPOSE["services"]["prefect"]["environment"]["PREFECT_API_DATABASE_CONNECTION_URL"].startswith("${")


def test_the_home_says_where_the_services_are(tmp_path: Path) -> None:
    (tmp_path / "services.json").write_text((FOLDER / "services.json").read_text())
    found = services._addresses(tmp_path)
    ports = {name: CONTAINERS[name]["ports"][0]["containerPort"] for name in found}
    assert found == {name: f"http://{name}:{port}" for name, port in ports.items()}
    assert found.keys() == services.HEALTH.keys()


def test_the_image_has_what_is_run(tmp_path: Path) -> None:
    text = (INFRA / "Dockerfile").read_text()
    assert "USER 10001" in text and PODS["worker"]["securityContext"]["runAsUser"] == 10001
    assert "constraints.txt" in text and "WORKDIR /app" in text
    assert {mount["mountPath"] for mount in CONTAINERS["worker"]["volumeMounts"]} >= {"/app/runs", "/tmp"}
