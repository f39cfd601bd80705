"""How a batch of rollouts is getting on, in a line for a person who waits.

rollouts as they end -> Meter -> "97 of 128 rollouts, 31 in flight, 1,840 tokens/s: completed 90, out_of_turns 7"
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from data_contracts.records import Rollout


class Meter:
    """Counts the rollouts of one batch; `running` tells how many sessions are in flight now, `clock` the seconds."""

    def __init__(self, total: int, running: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._running, self._clock = total, running, clock
        self._started, self._tokens = clock(), 0
        self._endings: Counter[str] = Counter()

    def add(self, rollout: Rollout) -> str:
        """Count one that has ended; returns the line."""
        self._endings[rollout.trajectory.status] += 1
        self._tokens += rollout.trajectory.sampled_tokens
        done, seconds = self._endings.total(), max(self._clock() - self._started, 1e-9)
        endings = ", ".join(f"{status} {count}" for status, count in self._endings.most_common())
        speed = f"{self._tokens / seconds:,.0f} tokens/s"
        return f"{done} of {self._total} rollouts, {self._running()} in flight, {speed}: {endings}"
