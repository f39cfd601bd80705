"""The one door to a home's registry: what a killed process left is settled before anybody looks.

home + name -> Registry, reconciled
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from models.mlflow_client import tracking_uri
from tasks.release.config import ReleaseConfig

if TYPE_CHECKING:
    from models.registry import Registry


def open_registry(home: Path, config: ReleaseConfig) -> Registry:
    """The releases of `config.name` that the home's MLflow keeps."""
    registry = registry_of(home, config.name, reference_above=config.reference_above_mb * 2**20)
    registry.reconcile()
    return registry


def registry_of(home: Path, name: str, **settings: int) -> Registry:
    """The same as it stands, for who only looks."""
    from models.registry import Registry

    return Registry(tracking_uri(home), home / "mlartifacts", name, home=home, **settings)
