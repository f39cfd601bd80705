"""Which release serves a session: sticky by its id, for as long as the share stands.

session id -> sha256 -> a point in [0, 1) -> below the share: candidate, else champion
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from models.release import Release
from models.trial import Serving
from tasks.canary.sessions import Arm


@dataclass(frozen=True, slots=True)
class Served:
    """A release as the gateway serves it: its name, by which the engine knows its weights too, and their digest.

    Not by the policy version: two runs may each have a policy-00060, with other weights.
    """

    release: str
    digest: str
    adapter: Path | None = None


class Route(NamedTuple):
    """Where a session was sent, and in which stage of the canary."""

    arm: Arm
    served: Served
    stage: int


class NoChampion(RuntimeError):
    """There is no release to serve yet."""


@dataclass(frozen=True, slots=True)
class State:
    """What new sessions are sent to. `shadow`: the candidate answers copies of the champion's requests, unseen."""

    champion: Served | None
    candidate: Served | None = None
    share: float = 0.0
    stage: int = 0
    shadow: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share {self.share} lies outside 0 to 1")

    @property
    def releases(self) -> tuple[Served, ...]:
        """Champion and candidate, as far as there are any."""
        return tuple(served for served in (self.champion, self.candidate) if served is not None)


class Routes:
    """The champion, at most one candidate, and its share of new sessions.

    A change is one assignment of an immutable state, so that a reader in another thread never sees a mix.
    """

    def __init__(self, champion: Served | None) -> None:
        self.state = State(champion)

    @property
    def champion(self) -> Served:
        """Raises NoChampion before the first one."""
        if self.state.champion is None:
            raise NoChampion("no release has been promoted yet: the gateway serves as soon as one is")
        return self.state.champion

    @property
    def candidate(self) -> Served | None:
        return self.state.candidate

    @property
    def share(self) -> float:
        return self.state.share

    def begin(self, candidate: Served, share: float, stage: int = 0) -> None:
        """Send `share` of the new sessions to a candidate; one that was on trial before gets no new ones."""
        self.state = State(self.champion, candidate, share, stage)

    def move(self, share: float, stage: int) -> None:
        """Change the share of the candidate on trial; sessions that have begun stay where they are."""
        self._tried()
        self.state = replace(self.state, share=share, stage=stage)

    def end(self) -> None:
        """No candidate any more: every new session goes to the champion."""
        self.state = State(self.state.champion)

    def promote(self) -> None:
        """The candidate is the champion from now on."""
        self.state = State(self._tried())

    def _tried(self) -> Served:
        if self.state.candidate is None:
            raise ValueError("no candidate is on trial: call begin first")
        return self.state.candidate

    def assign(self, session: str) -> Route:
        """The route of a new session: the same for the same id, share and releases; a raised share takes none back."""
        state = self.state
        if state.candidate is not None and position(session) < state.share:
            return Route("candidate", state.candidate, state.stage)
        return Route("champion", self.champion, state.stage)

    def named(self, release: str) -> Route | None:
        """The route of a session that asks for a release by name, if that is served."""
        state = self.state
        if state.champion is not None and release == state.champion.release:
            return Route("champion", state.champion, state.stage)
        if state.candidate is not None and release == state.candidate.release:
            return Route("candidate", state.candidate, state.stage)
        return None


def position(session: str) -> float:
    """A session's point in [0, 1): the first 53 bits of the sha256 of its id."""
    return (int.from_bytes(hashlib.sha256(session.encode()).digest()[:8]) >> 11) / 2**53


def served_of(release: Release) -> Served:
    """A published release as the gateway serves it."""
    return Served(f"release-{release.version}", release.digests["policy"], release.policy_path)


def state_of(serving: Serving) -> State:
    """What the registry says is to be served, as the gateway routes it."""
    champion, trial = served_of(serving.champion), serving.trial
    if trial is None or serving.candidate is None:
        return State(champion)
    return State(champion, served_of(serving.candidate), trial.share, trial.stage, trial.shadow)
