"""Reads releases back from MLflow, in any process that has its address.

version of `<name>-release` -> manifest.json, as it was registered -> Release with the paths of its files
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse
from urllib.request import url2pathname

from data_contracts.errors import UserError
from models.mlflow_client import quoted
from models.release import Component, Manifest, Release, ReleaseDamaged

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

MANIFEST = "manifest.json"


class ReleaseReader:
    """Versions of one agent's `<name>-release`, and what they pin. Writes nothing."""

    def __init__(self, client: MlflowClient, name: str) -> None:
        self._client, self._name = client, name
        self._model = f"{name}-release"

    def load(self, version: ModelVersion) -> Release:
        """The release behind a version of `<name>-release`; its manifest must be the one that was registered."""
        if "ratchet.manifest" not in version.tags:
            raise ReleaseDamaged(f"version {version.version} of {self._model!r} was registered by hand: publish it")
        folder = self.fetch(str(version.source))
        path = folder / MANIFEST
        text = path.read_text() if path.is_file() else ""
        if text_digest(text) != version.tags["ratchet.manifest"]:
            raise ReleaseDamaged(f"the manifest of release {version.version}, {path}, is not the one published")
        manifest = Manifest.model_validate_json(text)
        return Release(
            version=int(version.version),
            manifest=manifest,
            paths={role: self._locate(part) for role, part in manifest.components.items()},
            reference_path=folder / manifest.reference.file if manifest.reference else None,
        )

    def find(self, version: int) -> ModelVersion:
        """A version of `<name>-release`; raises `UserError` when there is none of that number."""
        found = self.registered(self._model, version)
        if found is None:
            raise UserError(f"there is no release {version} of {self._name!r}: `ratchet release list` shows them.")
        return found

    def registered(self, model: str, version: int) -> ModelVersion | None:
        """A version of any registered model; None when there is none, or it was deleted."""
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_model_version(model, str(version))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        return None

    def require_whole(self, release: Release) -> None:
        """Every component is registered, and every pinned byte as it was; raises `ReleaseDamaged` naming what is not.

        A large base is hashed too: this takes as long as reading it.
        """
        for role, part in release.manifest.components.items():
            if self.registered(part.model, part.version) is None:
                raise ReleaseDamaged(
                    f"release {release.version} is incomplete: its {role}, version {part.version} of {part.model!r}, "
                    "is no longer in MLflow; publish again and promote that release"
                )
        release.verify()

    def versions(self) -> list[ModelVersion]:
        """Every version of `<name>-release` that was published here, oldest first."""
        return [version for version in self.all_of(self._model) if "ratchet.key" in version.tags]

    def all_of(self, model: str) -> list[ModelVersion]:
        """Every version of a registered model, oldest first."""
        return sorted(self._pages(f"name={quoted(model)}"), key=lambda version: int(version.version))

    def search(self, model: str, tags: Mapping[str, str]) -> ModelVersion | None:
        """The oldest version of `model` with these tags; MLflow writes a version and its tags in one transaction."""
        wanted = " and ".join(
            [f"name={quoted(model)}", *(f"tags.`{key}` = {quoted(value)}" for key, value in tags.items() if value)]
        )
        found = self._client.search_model_versions(wanted, order_by=["version_number ASC"], max_results=200)
        return next((version for version in found if all(version.tags[key] == tags[key] for key in tags)), None)

    def fetch(self, source: str) -> Path:
        """Where the artifacts of `runs:/<run id>/<path>` lie on this machine (downloaded when the store is remote)."""
        from mlflow.exceptions import MlflowException

        run_id, _, path = source.removeprefix("runs:/").partition("/")
        try:
            root = urlparse(str(self._client.get_run(run_id).info.artifact_uri))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            raise ReleaseDamaged(f"{source} is gone from MLflow: publish again and promote that release") from error
        if root.scheme in ("", "file"):  # MLflow's own download takes four queries more to say the same
            return Path(url2pathname(root.path)) / path
        return Path(self._client.download_artifacts(run_id, path))

    def _pages(self, wanted: str) -> Iterator[ModelVersion]:
        token = None
        while True:
            page = self._client.search_model_versions(wanted, max_results=200, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _locate(self, part: Component) -> Path:
        if part.path is not None:
            return Path(part.path)
        folder = self.fetch(part.source)
        return folder / part.file if part.file is not None else folder


def text_digest(text: str) -> str:
    """sha256 of a text, as hex."""
    return hashlib.sha256(text.encode()).hexdigest()
