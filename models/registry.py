"""Base, reward model and policy, versioned together in MLflow, and one pointer to the version that serves.

publish(bundle) -> release version -> promote -> champion -> rollback

The alias `champion` of `<name>-release` is the only thing that serving follows: a reader takes it once and then holds
an immutable manifest, so it never sees a mix of two releases. MLflow has no compare-and-set, so whoever moves anything
takes a file lock, and a journal beside it lets `reconcile` finish or undo what a killed process left.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_contracts.errors import UserError
from data_contracts.gates import Gate, require
from models.mlflow_client import connect, file_lock
from models.registry_journal import Journal, Kind, Move, champions
from models.registry_moves import Mover, new_move
from models.registry_pointers import Pointers, PointerStore
from models.registry_reader import ReleaseReader
from models.registry_retention import Doomed, Retention
from models.registry_store import ReleaseStore
from models.registry_view import RegistryView
from models.release import Bundle, Release, ReleaseRefused
from models.trial import Trial

REFERENCE_ABOVE = 64 * 2**20
"""A base larger than this many bytes is referenced by path and digest, not copied into the artifact store."""


class ChampionMoved(UserError):
    """The champion is not the one that the evidence was measured against."""


class TrialMoved(UserError):
    """The trial is not the one that the caller moves on or ends: another canary began meanwhile."""


class Registry(RegistryView):
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
        client = connect(tracking_uri)
        reader, pointers = ReleaseReader(client, name), PointerStore(client, self.model)
        super().__init__(reader, pointers, Journal(folder / f"{name}.jsonl"))
        self._store = ReleaseStore(client, reader, name, artifact_root, reference_above)
        self._retention = Retention(client, reader, name, self._store.experiment)
        self._mover = Mover(self._journal, pointers, self._store, self._retention.delete)
        self._move_lock = folder / f"{name}.lock"
        self._publish_lock = folder / f"{name}-publish.lock"

    def publish(self, bundle: Bundle) -> int:
        """Register what is new in `bundle` and one release that pins it all; returns the release's version.

        The same run id and contents give the same version, also when an earlier attempt was killed on its way.
        """
        with file_lock(self._publish_lock):
            self.reconcile()  # or it would build on components that a killed collection has yet to delete
            version = self._store.publish(bundle)
        self.release(version).verify()
        return version

    def promote(
        self,
        version: int,
        *,
        who: str,
        why: str,
        evidence: Sequence[Gate] = (),
        compared_with: int | None = None,
        forced: bool = False,
    ) -> Release:
        """Make `version` the champion, after its files were verified. Already champion: nothing happens.

        Raises `GateHeld` when a gate in `evidence` is not a PASS, `ReleaseRefused` for one that is incomplete, damaged
        or in quarantine, and `ChampionMoved` when the champion is not `compared_with` (0: there was none yet), which
        the evidence rests on. `forced` is for the history.
        """
        require(*evidence)
        with file_lock(self._move_lock):
            self._reconcile()
            release = self._fit_to_serve(version)
            current = self.pointers().champion
            if current == version:
                return release
            if compared_with is not None and compared_with != (current or 0):
                raise ChampionMoved(
                    f"release {version} was compared with release {compared_with or 'none'}, but the champion of "
                    f"{self.name!r} is now {current or 'none'}: evaluate it against that one"
                )
            self._carry_out("promote", current, version, who, why, evidence=tuple(evidence), forced=forced)
        return release

    def rollback(
        self,
        *,
        to: int | None = None,
        from_version: int | None = None,
        who: str = "operator",
        why: str = "rolled back",
    ) -> Release:
        """Make the champion before this one, or the former champion `to`, the champion again.

        Without `to`, a former champion in quarantine is passed over. With `from_version` it happens only while that
        version is the champion, so that asking twice goes back once. Raises `UserError` when there is none to go to.
        """
        with file_lock(self._move_lock):
            self._reconcile()
            found = self.pointers()
            if found.champion is None:
                raise UserError(f"{self.name!r} has no champion to roll back from: promote a release first.")
            if found.champion == to or from_version not in (None, found.champion):
                return self.release(found.champion)
            release = self._fit_to_serve(self._former(to) if to else self._target(found))
            self._carry_out("rollback", found.champion, release.version, who, why)
        return release

    def set_trial(self, trial: Trial | None, *, who: str, why: str, only_if: str | None = None) -> None:
        """Begin a trial, move it on, or end it (None). The same again does nothing.

        With `only_if` it happens only while the trial of that id goes on: `TrialMoved` otherwise. Raises
        `ChampionMoved` when the champion is not the one the trial is against, `ReleaseRefused` for a candidate that is
        incomplete, damaged or in quarantine.
        """
        with file_lock(self._move_lock):
            self._reconcile()
            found = self.pointers()
            if trial == found.trial:
                return
            if only_if is not None and (found.trial is None or found.trial.id != only_if):
                raise TrialMoved(f"trial {only_if} of {self.name!r} is over: now it is {found.trial}")
            if trial is not None and trial.champion != found.champion:
                raise ChampionMoved(
                    f"the trial is against release {trial.champion}, but the champion of {self.name!r} is "
                    f"{found.champion}"
                )
            candidate = None if trial is None else self._fit_to_serve(trial.candidate).version
            self._carry_out("trial", found.champion, candidate, who, why, trial=trial)

    def quarantine_release(self, version: int, *, who: str, why: str) -> None:
        """Never serve `version` again until the quarantine is lifted; in quarantine already: nothing happens.

        A champion is rolled back by the same move, a candidate's trial ends. Raises `UserError` for a champion that
        there is nothing to go back from, since then nothing would serve: promote another release first.
        """
        with file_lock(self._move_lock):
            self._reconcile()
            self._reader.find(version)
            found = self.pointers()
            if version in found.quarantined:
                return
            to = found.champion if found.champion != version else self._fit_to_serve(self._target(found)).version
            self._carry_out("quarantine", found.champion, to, who, why, release=version)

    def lift_quarantine(self, version: int, *, who: str, why: str) -> None:
        """Let `version` serve again, when somebody promotes it; not in quarantine: nothing happens."""
        with file_lock(self._move_lock):
            self._reconcile()
            found = self.pointers()
            if version in found.quarantined:
                self._carry_out("lift", found.champion, found.champion, who, why, release=version)

    def collect(self, *, keep_last: int, keep_days: float, who: str, why: str, dry_run: bool = False) -> Doomed:
        """Delete releases that are old, and the components that no other release pins; returns what goes.

        Kept are the newest `keep_last`, those younger than `keep_days`, the champion with its drift reference, both
        sides of a trial, and every champion that a rollback could go back to.
        """
        with file_lock(self._publish_lock), file_lock(self._move_lock):
            self._reconcile()
            doomed = self._retention.plan(self._protected(), keep_last, keep_days)
            if doomed and not dry_run:
                champion = self.pointers().champion
                self._carry_out("collect", champion, champion, who, why, doomed=doomed)
        return doomed

    def reconcile(self) -> list[Move]:
        """Finish or undo what a killed process left; returns the moves it settled. Safe to call at any time."""
        with file_lock(self._move_lock):
            return self._reconcile()

    def _reconcile(self) -> list[Move]:
        settled = self._mover.settle()
        stack, found = champions(self._journal.moves()), self.pointers()
        known = stack[-1] if stack else None
        if found.champion != known:
            why = "the alias was moved in MLflow, not by this registry"
            settled.append(self._carry_out("outside", known, found.champion, "unknown", why))
        reason = None if found.champion is None else found.quarantined.get(found.champion)
        if reason is not None and (to := self._targets(found)):
            why = f"release {found.champion} is in quarantine: {reason}"
            settled.append(self._carry_out("rollback", found.champion, to[0], "ratchet", why))
        return settled

    def _carry_out(self, kind: Kind, champion: int | None, to: int | None, who: str, why: str, **more: Any) -> Move:
        return self._mover.carry_out(new_move(kind, champion, to, who, why, **more))

    def _fit_to_serve(self, version: int) -> Release:
        """A release that may serve: known, not in quarantine, whole, and as it was published."""
        self._reader.find(version)
        why = self.pointers().quarantined.get(version)
        if why is not None:
            raise ReleaseRefused(
                f"release {version} is in quarantine: {why}; "
                f"`ratchet release quarantine {version} --lift --why ...` ends that."
            )
        release = self.release(version)
        self._reader.require_whole(release)
        return release

    def _targets(self, found: Pointers) -> list[int]:
        return [version for version in self.rollback_targets() if version not in found.quarantined]

    def _target(self, found: Pointers) -> int:
        """The nearest former champion that may serve."""
        if targets := self._targets(found):
            return targets[0]
        hidden = " that is not in quarantine" if self.rollback_targets() else ""
        raise UserError(
            f"release {found.champion} is the first champion of {self.name!r}{hidden}: there is none before it; "
            "promote another release."
        )

    def _former(self, version: int) -> int:
        self._reader.find(version)
        targets = self.rollback_targets()
        if version not in targets:
            was = any(move.moves_champion and move.to_version == version for move in self.history())
            why = "was rolled back from" if was else "has never been champion"
            raise UserError(
                f"release {version} {why}, so a rollback cannot go there: promote it, or go back to one of "
                f"{', '.join(map(str, targets)) or 'none'}."
            )
        return version

    def _protected(self) -> set[int]:
        found = self.pointers()
        trial = found.trial
        on_trial = {trial.champion, trial.candidate} if trial else set()
        serving = {found.champion} if found.champion else set()
        return {*serving, *on_trial, *self.rollback_targets()}
