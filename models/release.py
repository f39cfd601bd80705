"""What a release is: base, reward model and policy pinned together by version, digest and content.

Bundle (what a run made) -> manifest (what was pinned) -> Release (what to load)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from data_contracts.errors import UserError
from data_contracts.gates import Gate
from data_contracts.records import Record

Role = Literal["base", "reward", "policy"]
ROLES: tuple[Role, ...] = ("base", "reward", "policy")
REQUIRED: tuple[Role, ...] = ("base", "policy")


class ReleaseRefused(UserError):
    """A release that may not serve: incomplete, damaged, or in quarantine; the message says which, and the remedy."""


class ReleaseDamaged(ReleaseRefused):
    """What a release pins is not what lies there; the message names the component and the file."""


class Bundle(Record):
    """What a run offers for release. Digests are those of `models.fingerprint`, as completions carry them.

    `datasets` and `contract_versions` map a name to a digest or version. No reward model: both its fields are None.
    `reference` is the evaluation's table that live sessions are compared with, `compared_with` the release that the
    evidence was measured against (0: there was none).
    """

    run_id: str = Field(min_length=1)
    base_path: Path
    base_digest: str = Field(min_length=1)
    policy_path: Path
    policy_version: str = Field(min_length=1)
    policy_digest: str = Field(min_length=1)
    reward_path: Path | None = None
    reward_digest: str | None = None
    datasets: dict[str, str] = Field(default_factory=dict)
    contract_versions: dict[str, str] = Field(default_factory=dict)
    recipe: dict[str, Any] = Field(default_factory=dict)
    code_revision: str = "unknown"
    evidence: tuple[Gate, ...] = ()
    reference: Path | None = None
    compared_with: int | None = None

    @model_validator(mode="after")
    def _reward_is_whole(self) -> Self:
        if (self.reward_path is None) != (self.reward_digest is None):
            raise ValueError("a reward model has a path and a digest: give both, or neither")
        return self

    def parts(self) -> dict[Role, tuple[Path, str]]:
        """Path and digest of each component there is."""
        parts: dict[Role, tuple[Path, str]] = {
            "base": (self.base_path, self.base_digest),
            "policy": (self.policy_path, self.policy_digest),
        }
        if self.reward_path is not None and self.reward_digest is not None:
            parts["reward"] = (self.reward_path, self.reward_digest)
        return parts


class Component(Record):
    """One pinned model version. `content` covers every byte, `digest` is what completions carry.

    A `copied` component lies in the artifact store under `source`; a `referenced` one stays at `path`. `file` is set
    when the component is that one file and no folder.
    """

    model: str
    version: int
    digest: str
    content: str
    stored: Literal["copied", "referenced"]
    source: str
    path: str | None = None
    file: str | None = None
    files: dict[str, str] = Field(description="sha256 by relative file name")


class Reference(Record):
    """The table that live sessions are compared with: a file beside the manifest, and its sha256."""

    file: str
    digest: str


class Manifest(Record):
    """The immutable statement of a release. Those of before there were references have none."""

    name: str
    key: str = Field(description="sha256 over run id, policy version and the components' digests and contents")
    run_id: str
    created: str = Field(description="UTC, ISO 8601")
    policy_version: str
    components: dict[Role, Component]
    datasets: dict[str, str]
    contract_versions: dict[str, str]
    recipe: dict[str, Any]
    code_revision: str
    evidence: tuple[Gate, ...]
    reference: Reference | None = None
    compared_with: int | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """One version of `<name>-release`: its manifest, and where its components and its reference can be loaded from."""

    version: int
    manifest: Manifest
    paths: Mapping[Role, Path]
    reference_path: Path | None = None

    @property
    def policy_version(self) -> str:
        return self.manifest.policy_version

    @property
    def base_path(self) -> Path:
        return self.paths["base"]

    @property
    def policy_path(self) -> Path:
        return self.paths["policy"]

    @property
    def reward_path(self) -> Path | None:
        return self.paths.get("reward")

    @property
    def versions(self) -> dict[str, int]:
        """Model version by role."""
        return {role: part.version for role, part in self.manifest.components.items()}

    @property
    def digests(self) -> dict[str, str]:
        """Digest by role."""
        return {role: part.digest for role, part in self.manifest.components.items()}

    def summary(self) -> dict[str, Any]:
        """The release as `ratchet status` prints it."""
        components = {role: {"version": self.versions[role], "digest": self.digests[role]} for role in self.versions}
        return {"version": self.version, "policy": self.policy_version, "components": components}

    def verify(self) -> None:
        """Hash every file of every component again; raises `ReleaseDamaged` naming the first that differs."""
        for role in REQUIRED:
            if role not in self.paths:
                raise ReleaseDamaged(f"release {self.version} has no {role}: publish a whole one")
        for role, part in self.manifest.components.items():
            _compare(f"{role} of release {self.version}", self.paths[role], part.files)
        reference = self.manifest.reference
        if reference is not None and self.reference_path is not None:
            _compare(f"reference of release {self.version}", self.reference_path, {reference.file: reference.digest})


def hash_files(path: Path) -> dict[str, str]:
    """sha256 by relative name of every file in a folder, or of the one file `path`."""
    if path.is_file():
        return {path.name: file_digest(path)}
    return {file.relative_to(path).as_posix(): file_digest(file) for file in sorted(path.rglob("*")) if file.is_file()}


def file_digest(path: Path) -> str:
    """sha256 of one file, as hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def size_of(path: Path) -> int:
    """Bytes in a folder's files, or of the one file `path`."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def content_of(files: Mapping[str, str]) -> str:
    """One sha256 over names and hashes, in order of the names."""
    lines = "".join(f"{name}\0{digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _compare(what: str, path: Path, pinned: Mapping[str, str]) -> None:
    found = hash_files(path) if path.exists() else {}
    for name in sorted({*pinned, *found}):
        if found.get(name) == pinned.get(name):
            continue
        happened = "is missing" if name not in found else "was added" if name not in pinned else "was changed"
        raise ReleaseDamaged(
            f"{what}: {path / name if path.is_dir() else path} {happened} since it was published: "
            "restore the file, or publish again and promote that release"
        )
