"""Base, reward model and policy, versioned together in MLflow, and one pointer to the version that serves.

publish(bundle) -> release version -> promote -> champion -> rollback

The alias `champion` of `<name>-release` is the only thing that ever changes: a reader takes it once and then holds an
immutable manifest, so it never sees a mix of two releases. MLflow has no compare-and-set, so promotions and rollbacks
take a file lock, and a journal beside it lets `reconcile` finish or undo what a killed process left.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data_contracts.errors import UserError
from data_contracts.gates import Gate, require
from models.mlflow_client import connect, file_lock
from models.registry_journal import Event, Journal, Kind, Move, champions, now, pending
from models.registry_store import ReleaseStore
from models.release import Bundle, Release
from models.trial import Serving, Trial

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

CHAMPION = "champion"
TRIAL = "ratchet.trial"
REFERENCE_ABOVE = 64 * 2**20
"""A base larger than this many bytes is referenced by path and digest, not copied into the artifact store."""


class ChampionMoved(RuntimeError):
    """The champion is not the one that the evidence was measured against."""


class TrialMoved(RuntimeError):
    """The trial is not the one that the caller moves on or ends: another canary began meanwhile."""


class Registry:
    """Releases of one agent. Everything under `home` (lock, journal) belongs to the machine that promotes."""

    def __init__(
        self,
        tracking_uri: str,
        artifact_root: Path | str,
        name: str,
        *,
        home: Path | None = None,
        reference_above: int = REFERENCE_ABOVE,
    ) -> None:
        """`home` defaults to the folder that holds `artifact_root`; `reference_above` is in bytes."""
        if home is None and not isinstance(artifact_root, Path):
            raise UserError("the registry's artifacts are not in a local folder: give the folder for its journal too.")
        folder = (home or Path(artifact_root).parent) / "registry"
        self.name = name
        self.model = f"{name}-release"
        self._client = connect(tracking_uri)
        self._store = ReleaseStore(self._client, name, artifact_root, reference_above)
        self._journal = Journal(folder / f"{name}.jsonl")
        self._move_lock = folder / f"{name}.lock"
        self._publish_lock = folder / f"{name}-publish.lock"
        self._releases: dict[int, Release] = {}

    def publish(self, bundle: Bundle) -> int:
        """Register what is new in `bundle` and one release that pins it all; returns the release's version.

        The same run id and contents give the same version, also when an earlier attempt was killed on its way.
        """
        with file_lock(self._publish_lock):
            version = self._store.publish(bundle)
        self.release(version).verify()
        return version

    def champion(self) -> Release | None:
        """The release that serves: one read of the alias, then its immutable manifest. None before the first one."""
        version = self._aliased()
        return None if version is None else self._load(version)

    def serving(self) -> Serving | None:
        """Champion and trial from one read; None before the first champion.

        A trial against another champion than the present one is over: nothing is left to undo after a promotion.
        """
        version, trial = self._pointers()
        if version is None:
            return None
        champion = self.release(version)
        if trial is None or trial.champion != version:
            return Serving(champion)
        return Serving(champion, trial, self.release(trial.candidate))

    def set_trial(self, trial: Trial | None, *, who: str, why: str, only_if: str | None = None) -> None:
        """Begin a trial, move it on, or end it (None). The same again does nothing.

        With `only_if` it happens only while the trial of that id goes on: `TrialMoved` otherwise. Raises
        `ChampionMoved` when the champion is not the one the trial is against, `ReleaseDamaged` when a pinned byte of
        the candidate changed.
        """
        with file_lock(self._move_lock):
            self._reconcile()
            version, before = self._pointers()
            if trial == before:
                return
            if only_if is not None and (before is None or before.id != only_if):
                raise TrialMoved(f"trial {only_if} of {self.name!r} is over: now it is {before.id if before else None}")
            if trial is not None and trial.champion != version:
                raise ChampionMoved(
                    f"the trial is against release {trial.champion}, but the champion of {self.name!r} is {version}"
                )
            if trial is not None:
                self.release(trial.candidate).verify()
            move = _new_move("trial", version, trial.candidate if trial else None, who, why)
            move = move.model_copy(update={"trial": trial})
            self._journal.append(move, "intent")
            self._write_trial(trial)
            self._journal.append(move, "done")

    def release(self, version: int) -> Release:
        """One release by version."""
        if version not in self._releases:
            self._releases[version] = self._load(self._store.find(version))
        return self._releases[version]

    def releases(self) -> list[Release]:
        """All releases, oldest first."""
        return [self._load(version) for version in self._store.versions()]

    def history(self) -> list[Move]:
        """Every move of the champion alias and every trial, oldest first, with who, why and evidence."""
        return self._journal.moves()

    def promote(
        self, version: int, *, who: str, why: str, evidence: Sequence[Gate] = (), compared_with: int | None = None
    ) -> Release:
        """Make `version` the champion, after its files were verified. Already champion: nothing happens.

        Raises `GateHeld` when a gate in `evidence` is not a PASS, `ReleaseDamaged` when a pinned byte changed, and
        `ChampionMoved` when the champion is not `compared_with` (0: there was none yet), which the evidence rests on.
        """
        require(*evidence)
        with file_lock(self._move_lock):
            self._reconcile()
            release = self.release(version)
            release.verify()
            current = self._champion_version()
            if current != version and compared_with is not None and compared_with != (current or 0):
                raise ChampionMoved(
                    f"release {version} was compared with release {compared_with or 'none'}, but the champion of "
                    f"{self.name!r} is now {current or 'none'}: evaluate it against that one"
                )
            self._move("promote", current, version, who, why, tuple(evidence))
        return release

    def rollback(self, *, from_version: int | None = None, who: str = "operator", why: str = "rolled back") -> Release:
        """Make the champion before this one the champion again.

        With `from_version` it happens only while that version is the champion, so that asking twice goes back once.
        Raises `UserError` when there is none to go back to.
        """
        with file_lock(self._move_lock):
            self._reconcile()
            current = self._champion_version()
            if current is None:
                raise UserError(f"{self.name!r} has no champion to roll back from: promote a release first.")
            if from_version is not None and current != from_version:
                return self.release(current)
            before = champions(self._journal.moves())[:-1]
            if not before or before[-1] is None:
                raise UserError(f"release {current} is the first champion of {self.name!r}: there is none before it.")
            release = self.release(before[-1])
            release.verify()
            self._move("rollback", current, before[-1], who, why, ())
        return release

    def reconcile(self) -> list[Move]:
        """Finish or undo what a killed process left; returns the moves it settled. Safe to call at any time."""
        with file_lock(self._move_lock):
            return self._reconcile()

    def _reconcile(self) -> list[Move]:
        settled = []
        for move in pending(self._journal.moves()):
            if move.kind == "trial":
                state: Event = "done" if self._pointers()[1] == move.trial else "undone"
                self._journal.append(move, state)
                settled.append(move.model_copy(update={"state": state}))
            elif move.state == "applied" or self._champion_version() == move.to_version:
                self._finish(move)
                settled.append(move.model_copy(update={"state": "done"}))
            else:
                self._journal.append(move, "undone")
                settled.append(move.model_copy(update={"state": "undone"}))
        stack, current = champions(self._journal.moves()), self._champion_version()
        if current != (stack[-1] if stack else None):
            settled.append(self._note_outside(stack[-1] if stack else None, current))
        return settled

    def _note_outside(self, known: int | None, current: int | None) -> Move:
        move = _new_move("outside", known, current, "unknown", "the alias was moved in MLflow, not by this registry")
        self._journal.append(move, "intent")
        self._journal.append(move, "done")
        return move.model_copy(update={"state": "done"})

    def _move(
        self, kind: Kind, current: int | None, version: int, who: str, why: str, evidence: tuple[Gate, ...]
    ) -> None:
        if current == version:
            return
        move = _new_move(kind, current, version, who, why, evidence)
        self._journal.append(move, "intent")
        self._client.set_registered_model_alias(self.model, CHAMPION, str(version))
        self._journal.append(move, "applied")
        self._finish(move)

    def _finish(self, move: Move) -> None:
        if move.to_version is not None:
            self._store.annotate(move.to_version, move)
        if self._pointers()[1] is not None:
            self._write_trial(None)  # it was against another champion, and must not revive when that one comes back
        self._journal.append(move, "done")

    def _pointers(self) -> tuple[int | None, Trial | None]:
        """Version of the champion and the trial as written, from one read."""
        from mlflow.exceptions import MlflowException

        try:
            model = self._client.get_registered_model(self.model)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None, None
            raise
        version, trial = model.aliases.get(CHAMPION), model.tags.get(TRIAL)
        return int(version) if version else None, Trial.model_validate_json(trial) if trial else None

    def _write_trial(self, trial: Trial | None) -> None:
        if trial is None:
            self._client.delete_registered_model_tag(self.model, TRIAL)
        else:
            self._client.set_registered_model_tag(self.model, TRIAL, trial.model_dump_json())

    def _champion_version(self) -> int | None:
        version = self._aliased()
        return None if version is None else int(version.version)

    def _aliased(self) -> ModelVersion | None:
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_model_version_by_alias(self.model, CHAMPION)
        except MlflowException as error:
            unset = error.error_code == "INVALID_PARAMETER_VALUE" and "alias" in str(error)
            if unset or error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def _load(self, version: ModelVersion) -> Release:
        number = int(version.version)
        if number not in self._releases:
            self._releases[number] = self._store.load(version)
        return self._releases[number]


def _new_move(
    kind: Kind, current: int | None, version: int | None, who: str, why: str, evidence: tuple[Gate, ...] = ()
) -> Move:
    return Move(
        id=uuid.uuid4().hex,
        kind=kind,
        from_version=current,
        to_version=version,
        who=who,
        why=why,
        evidence=evidence,
        at=now(),
    )
