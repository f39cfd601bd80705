"""How many sessions may be in flight: as many as the recipe allows, fewer while the engine's KV-cache is too full.

Engine.pressure() -> InFlight.hear() -> limit

Sessions that hold more than the cache preempt each other: their keys and values are thrown away and computed again.
Additive growth, multiplicative cut, as in TCP's congestion control (Jacobson 1988).
"""

from __future__ import annotations

from tasks.rollout.engine import Pressure

GROW_BELOW, TRIM_ABOVE = 0.6, 0.8
STEP = 0.1


class InFlight:
    """The limit, between 1 and `most`. It does not end sessions: it waits for them to end."""

    def __init__(self, most: int) -> None:
        self.limit, self._most = most, most
        self._preemptions: int | None = None

    def hear(self, pressure: Pressure | None, running: int) -> None:
        """Follow one reading while `running` sessions are in flight; without either there is nothing to learn."""
        if pressure is None or not running:
            return
        before, self._preemptions = self._preemptions, pressure.preemptions
        if before is not None and pressure.preemptions > before:
            self.limit = max(1, min(self.limit, running) // 2)
        elif pressure.kv_use > TRIM_ABOVE:
            self.limit = max(1, min(self.limit, running) - self._step)
        elif pressure.kv_use < GROW_BELOW and running >= self.limit:
            self.limit = min(self._most, self.limit + self._step)

    @property
    def _step(self) -> int:
        return max(1, round(STEP * self.limit))
