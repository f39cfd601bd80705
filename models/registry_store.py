"""Writes the parts of a release into MLflow, each once.

bundle -> component versions (one run each) -> manifest.json, reference, MLmodel -> one version of `<name>-release`

A component's files lie in a run of their own, so that deleting a training run never takes a live release's base
along. Each step is looked up before it is done, so a repeated publication finds what an earlier, killed one left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_contracts.errors import UserError
from models.mlflow_client import experiment_id, quoted
from models.registry_journal import Move, now
from models.registry_reader import MANIFEST, ReleaseReader, text_digest
from models.release import (
    Bundle,
    Component,
    Manifest,
    Reference,
    Role,
    content_of,
    file_digest,
    hash_files,
    size_of,
)
from models.release_model import MLMODEL, mlmodel_text

if TYPE_CHECKING:
    from mlflow import MlflowClient


class ReleaseStore:
    """Runs, artifacts and model versions of one agent's releases."""

    def __init__(
        self,
        client: MlflowClient,
        reader: ReleaseReader,
        name: str,
        artifact_root: Path | str,
        reference_above: int,
    ) -> None:
        self._client, self._reader = client, reader
        self._name = name
        self._model = f"{name}-release"
        self._reference_above = reference_above
        self.experiment = experiment_id(client, f"{name}-releases", artifact_root)

    def publish(self, bundle: Bundle) -> int:
        """Register the components that are new and the release; returns the release's version."""
        components = {role: self._component(role, path, digest) for role, (path, digest) in bundle.parts().items()}
        key = _release_key(bundle, components)
        existing = self._reader.search(self._model, {"ratchet.key": key})
        if existing is not None:
            return int(existing.version)
        manifest = _manifest(self._name, key, bundle, components)
        text = json.dumps(manifest.model_dump(mode="json"), indent=2, sort_keys=True)
        run_id = self._run(f"release {bundle.run_id}", {"ratchet.release": key, "ratchet.run_id": bundle.run_id})
        if bundle.reference is not None:
            self._client.log_artifact(run_id, str(bundle.reference), "release")
        self._client.log_text(run_id, text, f"release/{MANIFEST}")
        self._client.log_text(run_id, mlmodel_text(manifest), f"release/{MLMODEL}")
        self._client.set_terminated(run_id)
        tags = {"ratchet.key": key, "ratchet.manifest": text_digest(text), **_tags(manifest)}
        return self._register(self._model, f"runs:/{run_id}/release", run_id, tags, _describe(manifest))

    def annotate(self, version: int, move: Move) -> None:
        """Show who moved the champion here, and why, in the MLflow UI."""
        note = f"{move.kind} by {move.who} at {move.at}: {move.why}"
        self._client.set_model_version_tag(self._model, str(version), "ratchet.moved", note[:5000])

    def _component(self, role: Role, path: Path, digest: str) -> Component:
        if not path.exists():
            raise UserError(f"the {role} to release, {path}, does not exist: run the stage that makes it first.")
        files = hash_files(path)
        referenced = role == "base" and size_of(path) > self._reference_above
        where = str(path.resolve()) if referenced else None
        tags = {"ratchet.digest": digest, "ratchet.content": content_of(files), "ratchet.path": where or ""}
        model = f"{self._name}-{role}"
        found = self._reader.search(model, tags)
        if found is None:
            source, run_id = self._upload(role, path, where, tags)
            version = self._register(model, source, run_id, tags, f"{role} {digest[:12]}")
        else:
            source, version = str(found.source), int(found.version)
        return Component(
            model=model,
            version=version,
            digest=digest,
            content=tags["ratchet.content"],
            stored="referenced" if referenced else "copied",
            source=source,
            path=where,
            file=path.name if path.is_file() and not referenced else None,
            files=files,
        )

    def _upload(self, role: Role, path: Path, where: str | None, tags: Mapping[str, str]) -> tuple[str, str]:
        run_id = self._run(f"{role} {tags['ratchet.digest'][:12]}", {"ratchet.role": role, **tags})
        if where is not None:
            self._client.log_dict(run_id, {"path": where, "digest": tags["ratchet.digest"]}, f"{role}/reference.json")
        elif path.is_file():
            self._client.log_artifact(run_id, str(path), role)
        else:
            self._client.log_artifacts(run_id, str(path), role)
        self._client.set_terminated(run_id)
        return f"runs:/{run_id}/{role}", run_id

    def _run(self, title: str, tags: Mapping[str, str]) -> str:
        """The run with these tags, made when there is none."""
        wanted = " and ".join(f"tags.`{key}` = {quoted(value)}" for key, value in tags.items() if value)
        for run in self._client.search_runs([self.experiment], wanted, max_results=1):
            return str(run.info.run_id)
        return str(self._client.create_run(self.experiment, tags=dict(tags), run_name=title).info.run_id)

    def _register(self, model: str, source: str, run_id: str, tags: dict[str, Any], description: str) -> int:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(model)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        made = self._client.create_model_version(
            model, source, run_id, tags=tags, description=description, await_creation_for=0
        )
        return int(made.version)


def _manifest(name: str, key: str, bundle: Bundle, components: dict[Role, Component]) -> Manifest:
    return Manifest(
        name=name,
        key=key,
        run_id=bundle.run_id,
        created=now(),
        policy_version=bundle.policy_version,
        components=components,
        datasets=bundle.datasets,
        contract_versions=bundle.contract_versions,
        recipe=bundle.recipe,
        code_revision=bundle.code_revision,
        evidence=bundle.evidence,
        reference=_reference(bundle.reference),
        compared_with=bundle.compared_with,
    )


def _reference(path: Path | None) -> Reference | None:
    if path is None:
        return None
    if not path.is_file():
        raise UserError(f"the reference to release, {path}, does not exist: run the evaluation that makes it first.")
    return Reference(file=path.name, digest=file_digest(path))


def _release_key(bundle: Bundle, components: Mapping[Role, Component]) -> str:
    parts = {role: (part.digest, part.content, part.path) for role, part in components.items()}
    return text_digest(json.dumps([bundle.run_id, bundle.policy_version, parts], sort_keys=True))


def _tags(manifest: Manifest) -> dict[str, str]:
    tags = {"ratchet.run_id": manifest.run_id, "ratchet.policy": manifest.policy_version}
    for role, part in manifest.components.items():
        tags[f"ratchet.{role}.version"] = str(part.version)
        tags[f"ratchet.{role}.digest"] = part.digest
    return tags


def _describe(manifest: Manifest) -> str:
    parts = ", ".join(f"{role} version {part.version}" for role, part in manifest.components.items())
    return f"{manifest.policy_version} of run {manifest.run_id}: {parts}"
