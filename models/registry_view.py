"""What is released, for whoever only reads: the champion, the trial, every release, and how that came about.

one read of alias and tags -> versions -> their immutable manifests;  journal -> history
"""

from __future__ import annotations

from models.registry_journal import Journal, Move, champions
from models.registry_pointers import Pointers, PointerStore
from models.registry_reader import ReleaseReader
from models.release import Release
from models.trial import Serving


class RegistryView:
    """Releases of one agent. A release that was read once is kept: its manifest never changes."""

    def __init__(self, reader: ReleaseReader, pointers: PointerStore, journal: Journal) -> None:
        self._reader, self._pointers, self._journal = reader, pointers, journal
        self._releases: dict[int, Release] = {}

    def champion(self) -> Release | None:
        """The release that serves: one read of the alias, then its immutable manifest. None before the first one."""
        version = self.pointers().champion
        return None if version is None else self.release(version)

    def serving(self) -> Serving | None:
        """Champion and trial from one read; None before the first champion.

        A trial against another champion than the present one is over: nothing is left to undo after a promotion. So is
        one of a candidate in quarantine.
        """
        found = self.pointers()
        if found.champion is None:
            return None
        trial = found.live_trial
        return Serving(self.release(found.champion), trial, self.release(trial.candidate) if trial else None)

    def pointers(self) -> Pointers:
        """Versions of what serves, is on trial and is in quarantine, from one read."""
        return self._pointers.read()

    def release(self, version: int) -> Release:
        """One release by version; raises `UserError` when there is none, `ReleaseDamaged` when its manifest is lost."""
        if version not in self._releases:
            self._releases[version] = self._reader.load(self._reader.find(version))
        return self._releases[version]

    def releases(self) -> list[Release]:
        """All releases, oldest first."""
        return [self.release(version) for version in self.versions()]

    def versions(self) -> list[int]:
        """Versions of all releases, oldest first, those included whose files were lost."""
        return [int(version.version) for version in self._reader.versions()]

    def history(self) -> list[Move]:
        """Every move of the champion, trial, quarantine and collection, oldest first, with who, why and evidence."""
        return self._journal.moves()

    def rollback_targets(self) -> list[int]:
        """Former champions that the present one stands on, the nearest first: what a rollback can go back to."""
        stack = champions(self._journal.moves())
        return list(dict.fromkeys(version for version in reversed(stack[:-1]) if version not in (None, stack[-1])))
