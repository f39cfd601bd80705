"""What `ratchet release` tells of releases, as plain JSON values.

registry -> one row a release;  release + history -> everything it pins;  two releases -> what is different
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from data_contracts.gates import Gate
from models.registry import Registry
from models.registry_journal import Move
from models.release import Release, ReleaseDamaged

Facts = dict[str, Any]


def all_releases(registry: Registry) -> list[Facts]:
    """One row a release, oldest first; one whose manifest was lost says so."""
    history = registry.history()
    return [_row(registry, version, history) for version in registry.versions()]


def one_release(registry: Registry, version: int) -> Facts:
    """Everything a release pins, where it stands, and its history."""
    release = registry.release(version)
    manifest = release.manifest.model_dump(mode="json")
    for part in manifest["components"].values():
        part["files"] = len(part["files"])
    history = [move.model_dump(mode="json") for move in registry.history() if move.concerns(version)]
    return {"version": version, "standing": _standing(registry, version), **manifest, "history": history}


def difference(a: Release, b: Release) -> dict[str, dict[str, list[Any]]]:
    """By section and key, the value in `a` and in `b`, where they are not the same."""
    left, right = _pinned(a), _pinned(b)
    found = {
        section: {
            key: [left[section].get(key), right[section].get(key)]
            for key in sorted({*left[section], *right[section]})
            if left[section].get(key) != right[section].get(key)
        }
        for section in left
    }
    return {section: changes for section, changes in found.items() if changes}


def _row(registry: Registry, version: int, history: Sequence[Move]) -> Facts:
    last = next((move for move in reversed(history) if move.concerns(version) and move.kind != "trial"), None)
    told = last.model_dump(mode="json", include={"kind", "who", "why", "at", "forced"}) if last else None
    row: Facts = {"version": version, "standing": _standing(registry, version), "last_move": told}
    try:
        manifest = registry.release(version).manifest
    except ReleaseDamaged as damaged:
        return row | {"damaged": str(damaged)}
    passed = {gate.name: str(gate.verdict) for gate in manifest.evidence}
    return row | {
        "policy": manifest.policy_version, "run": manifest.run_id, "created": manifest.created, "evidence": passed
    }  # fmt: skip


def _standing(registry: Registry, version: int) -> list[str]:
    found, standing = registry.pointers(), []
    if found.champion == version:
        standing.append("champion")
    if found.live_trial and found.live_trial.candidate == version:
        standing.append(f"on trial, {found.live_trial.share:.0%} of sessions")
    if version in registry.rollback_targets():
        standing.append("rollback target")
    if version in found.quarantined:
        standing.append(f"in quarantine: {found.quarantined[version]}")
    return standing


def _pinned(release: Release) -> dict[str, dict[str, Any]]:
    manifest = release.manifest
    parts: dict[str, Any] = {
        str(role): {"version": part.version, "digest": part.digest} for role, part in manifest.components.items()
    }
    reference = manifest.reference.digest if manifest.reference else None
    return {
        "release": {"policy": manifest.policy_version, "run": manifest.run_id, "code": manifest.code_revision},
        "components": _flat(parts),
        "reference": {"digest": reference},
        "data sets": dict(manifest.datasets),
        "contracts": dict(manifest.contract_versions),
        "recipe": _flat(manifest.recipe),
        "evidence": _flat({gate.name: _figures(gate) for gate in manifest.evidence}),
    }


def _figures(gate: Gate) -> dict[str, Any]:
    return {"verdict": str(gate.verdict), **gate.evidence}


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key."""
    leaves: dict[str, Any] = {}
    for key, value in nested.items():
        leaves |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return leaves
