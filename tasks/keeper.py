"""Services that are kept up: one that ends by itself is started again, at the same address, a bounded number of times.

Plan -> started -> up;  ended by itself -> announced, waited, started again;  ended too often -> ServiceLost

Whoever keeps them is killed: they end too (tasks/supervision.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tasks.supervision import Plan, Service, log_end, start

LOOK_SECONDS = 0.5
"""Time between two looks at what is kept."""


class ServiceLost(RuntimeError):
    """A service ended more often than it is started again, or did not come up in time."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often. Seconds."""

    ends: int = 5
    """A service that ended so often ..."""
    within: float = 600.0
    """... within so many seconds is given up."""
    first_wait: float = 1.0
    """Before it is started again; doubled with each end within that time."""
    longest_wait: float = 30.0
    start: float = 900.0
    """A service that is not up after so long is given up: a starved machine takes minutes."""
    settled: float = 5.0
    """One that listens nowhere is taken for up after so long."""
    tell_every: float = 30.0
    """What takes long is said so often."""


@dataclass(slots=True)
class Kept:
    """One service that is kept up, through all its lives."""

    plan: Plan
    service: Service
    began: float
    waits: bool
    """Whether it may take any time to be up, since that lies with others."""
    up: bool = False
    told: float = 0.0
    again_at: float | None = None
    ended: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.plan.name


class Keeper:
    """Starts services, and starts again what ended by itself; leaving it ends them, the last one first."""

    def __init__(self, say: Callable[[str], None], patience: Patience | None = None) -> None:
        self.kept: list[Kept] = []
        self._say, self._patience = say, patience or Patience()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self.kept:
            self.kept.pop().service.end()

    def keep(self, plan: Plan, *, waits: bool = False) -> Kept:
        """Start a service and keep it from now on; with `waits` it is given any time to be up."""
        kept = Kept(plan, start(plan), time.monotonic(), waits)
        self.kept.append(kept)
        return kept

    def wait_up(self, stop: threading.Event) -> bool:
        """Look until all are up that need not wait for others; False when `stop` was set before."""
        while not all(kept.up or kept.waits for kept in self.kept):
            self.look()
            if stop.wait(LOOK_SECONDS):
                return False
        return True

    def stay(self, stop: threading.Event) -> None:
        """Keep them up until `stop` is set. Raises ServiceLost, as `look` does."""
        while not stop.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """One look at each: note what ended or came up, start again what is due.

        Raises ServiceLost, with the end of its log, for one that ended too often or does not come up.
        """
        for kept in self.kept:
            if kept.again_at is not None:
                self._start_again(kept)
            elif not kept.service.alive:
                self._note_end(kept)
            elif not kept.up:
                self._note_start(kept)

    def _note_end(self, kept: Kept) -> None:
        now, patience = time.monotonic(), self._patience
        kept.ended = [*(end for end in kept.ended if now - end < patience.within), now]
        kept.up = False
        code = kept.service.process.returncode
        if len(kept.ended) >= patience.ends:
            often = f", {len(kept.ended)} times in {patience.within / 60:g} minutes" if patience.ends > 1 else ""
            raise ServiceLost(f"{kept.name} ended with exit code {code}{often}; {log_end(kept.plan.log)}")
        kept.service.end()
        wait = min(patience.first_wait * 2 ** (len(kept.ended) - 1), patience.longest_wait)
        kept.again_at = now + wait
        self._say(f"{kept.name} ended with exit code {code}: starting it again in {wait:g} s ({kept.plan.log})")

    def _start_again(self, kept: Kept) -> None:
        if kept.again_at is not None and time.monotonic() >= kept.again_at:
            kept.again_at = None
            kept.service, kept.began, kept.told = start(kept.plan, append=True), time.monotonic(), 0.0

    def _note_start(self, kept: Kept) -> None:
        took, patience = time.monotonic() - kept.began, self._patience
        if (kept.plan.url or took > self._patience.settled) and kept.plan.up():
            kept.up = True
            if kept.ended or kept.waits or kept.told:
                self._say(f"{kept.name} is up{' again' if kept.ended else ''} after {took:.0f} s")
        elif took > patience.start and not kept.waits:
            raise ServiceLost(f"{kept.name} was not up after {took:.0f} s; {log_end(kept.plan.log)}")
        elif took - kept.told > patience.tell_every and not kept.waits:
            kept.told = took
            self._say(f"{kept.name} is not up yet after {took:.0f} s ({kept.plan.log})")
