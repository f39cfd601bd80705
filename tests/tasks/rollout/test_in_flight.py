"""The number in flight follows the KV-cache: by hand, and in a run."""

from __future__ import annotations

from tasks.rollout.engine import Pressure
from tasks.rollout.in_flight import InFlight


def limits(most: int, *readings: tuple[float, int, int]) -> list[int]:
    """The limit after each reading of (KV-cache use, preemptions so far, sessions running)."""
    flying = InFlight(most)
    found = []
    for use, preemptions, running in readings:
        flying.hear(Pressure(use, preemptions), running)
        found.append(flying.limit)
    return found


def test_it_trims_above_80_percent_and_grows_below_60_where_it_is_used() -> None:
    assert limits(100, (0.7, 0, 100), (0.85, 0, 100), (0.85, 0, 95), (0.81, 0, 81)) == [100, 90, 81, 73]
    assert limits(100, (0.85, 0, 100), (0.7, 0, 90), (0.5, 0, 90), (0.5, 0, 60), (0.5, 0, 99)) == [90, 90, 99, 99, 100]


def test_a_preemption_halves_it_once() -> None:
    assert limits(64, (0.99, 7, 64), (0.99, 9, 40), (0.7, 9, 40), (0.5, 9, 20)) == [58, 20, 20, 22]


def test_it_never_ends_all_sessions_and_no_reading_changes_nothing() -> None:
    assert limits(3, *((0.99, n, 1) for n in range(5)))[-1] == 1
    flying = InFlight(8)
    flying.hear(None, 8)
    assert flying.limit == 8
