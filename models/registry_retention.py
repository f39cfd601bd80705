"""Which old releases can go, and what goes with them.

versions, protected ones, age -> Doomed: releases, components that no kept release pins, the runs that held both
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from data_contracts.records import Record
from models.release import ROLES

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from models.registry_reader import ReleaseReader


class Doomed(Record):
    """What is to be deleted. A run is deleted with its artifacts; a referenced base is nobody's to delete."""

    releases: tuple[int, ...] = ()
    components: tuple[tuple[str, int], ...] = ()
    runs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.releases or self.components or self.runs)


class Retention:
    """Plans and does the deletion for one agent. Call both with nobody publishing."""

    def __init__(self, client: MlflowClient, reader: ReleaseReader, name: str, experiment: str) -> None:
        self._client, self._reader, self._name, self._experiment = client, reader, name, experiment

    def plan(self, protected: Collection[int], keep_last: int, keep_days: float) -> Doomed:
        """Releases that are neither protected, nor among the newest `keep_last`, nor younger than `keep_days` days.

        With them go components and runs that no kept release rests on, also those that killed publications left.
        """
        releases = self._reader.all_of(f"{self._name}-release")
        gone = {int(old.version) for old in _old(releases, keep_last, keep_days)} - set(protected)
        kept = [release for release in releases if int(release.version) not in gone]
        unpinned, kept_runs = self._components(kept)
        kept_runs |= {str(release.run_id) for release in kept}
        return Doomed(
            releases=tuple(sorted(gone)),
            components=tuple((version.name, int(version.version)) for version in unpinned),
            runs=tuple(sorted(self._runs() - kept_runs)),
        )

    def delete(self, doomed: Doomed) -> None:
        """Releases first, so that nobody finds one whose files are going; done twice, it does what was left."""
        for release in doomed.releases:
            self._delete_version(f"{self._name}-release", release)
        for model, version in doomed.components:
            self._delete_version(model, version)
        for run_id in doomed.runs:
            self._delete_run(run_id)

    def _components(self, kept: Sequence[ModelVersion]) -> tuple[list[ModelVersion], set[str]]:
        """Component versions that no kept release pins, and the runs of those that one does.

        By the tags that were written with the release: a manifest that was damaged since must not cost its components.
        """
        unpinned: list[ModelVersion] = []
        runs: set[str] = set()
        for role in ROLES:
            pinned = {release.tags.get(f"ratchet.{role}.version") for release in kept}
            for version in self._reader.all_of(f"{self._name}-{role}"):
                if str(version.version) in pinned:
                    runs.add(str(version.run_id))
                else:
                    unpinned.append(version)
        return unpinned, runs

    def _runs(self) -> set[str]:
        found: set[str] = set()
        token = None
        while True:
            page = self._client.search_runs([self._experiment], max_results=1000, page_token=token)
            found |= {str(run.info.run_id) for run in page}
            token = page.token
            if not token:
                return found

    def _delete_version(self, model: str, version: int) -> None:
        if self._reader.registered(model, version) is not None:
            self._client.delete_model_version(model, str(version))

    def _delete_run(self, run_id: str) -> None:
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        artifacts = str(self._client.get_run(run_id).info.artifact_uri)
        get_artifact_repository(artifacts, tracking_uri=self._client.tracking_uri).delete_artifacts()
        self._client.delete_run(run_id)


def _old(releases: Sequence[ModelVersion], keep_last: int, keep_days: float) -> Sequence[ModelVersion]:
    """Those whose time is over, of the ones that were published here."""
    oldest_kept = (datetime.now(UTC) - timedelta(days=keep_days)).timestamp() * 1000
    published = [release for release in releases if "ratchet.key" in release.tags]
    candidates = published[: max(0, len(published) - keep_last)]
    return [release for release in candidates if release.creation_timestamp < oldest_kept]
