"""The one door to MLflow: telemetry off, quiet, its database made once.

tracking URI -> MlflowClient

Importing mlflow costs seconds, so it happens inside `connect`, not when this module is imported.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from data_contracts.errors import UserError

if TYPE_CHECKING:
    from mlflow import MlflowClient

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
"""What every process that imports mlflow has in its environment: recipes and code stay on the machine."""


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`, between processes and threads; the system frees it when the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def tracking_uri(home: Path) -> str:
    """Where the releases of a home are registered: MLFLOW_TRACKING_URI, where there is a server for many machines."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home.resolve() / 'mlflow.db'}"


def connect(tracking_uri: str) -> MlflowClient:
    """A client for `tracking_uri`; a sqlite database that does not exist yet is made, by one process at a time."""
    from mlflow import MlflowClient

    database = _sqlite_file(tracking_uri)
    if database is None:
        return MlflowClient(tracking_uri, tracking_uri)
    database.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(database.with_name(database.name + ".lock")):
        _let_readers_pass(database)
        return MlflowClient(tracking_uri, tracking_uri)  # makes the tables of runs, traces and models, if need be


def experiment_id(client: MlflowClient, name: str, artifact_root: Path | str) -> str:
    """The id of the experiment `name`, created with its artifacts under `artifact_root` when it does not exist."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=_location(artifact_root)))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)
    if found is None or found.lifecycle_stage != "active":
        raise UserError(f"MLflow experiment {name!r} was deleted: restore it in MLflow, or choose another name.")
    return str(found.experiment_id)


def quoted(value: str) -> str:
    """`value` as a string in an MLflow search filter."""
    if "'" in value:
        raise ValueError(f"{value!r} holds a quote and cannot be searched for")
    return f"'{value}'"


def _let_readers_pass(database: Path) -> None:
    """Switch the database to a write-ahead log, once for all: who reads the champion never waits for who writes."""
    connection = sqlite3.connect(database, timeout=60)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()


def _sqlite_file(tracking_uri: str) -> Path | None:
    prefix = "sqlite:///"
    return Path(tracking_uri.removeprefix(prefix)) if tracking_uri.startswith(prefix) else None


def _location(artifact_root: Path | str) -> str:
    return artifact_root.resolve().as_uri() if isinstance(artifact_root, Path) else artifact_root
