"""The one door to a home's registry: what a killed process left is settled before anybody looks.

home + name -> Registry, reconciled
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.release.config import ReleaseConfig

if TYPE_CHECKING:
    from models.registry import Registry


def open_registry(home: Path, config: ReleaseConfig) -> Registry:
    """The releases of `config.name` that the home's MLflow keeps."""
    from models.registry import Registry

    registry = Registry(
        tracking_uri(home),
        home / "mlartifacts",
        config.name,
        home=home,
        reference_above=config.reference_above_mb * 2**20,
    )
    registry.reconcile()
    return registry


def tracking_uri(home: Path) -> str:
    """MLflow's address in a home."""
    return f"sqlite:///{home / 'mlflow.db'}"
