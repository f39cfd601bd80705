"""Verified progress: how the share of hidden checks that pass changed with each turn.

files at the start, and what each turn changed -> files after each turn -> hidden checks -> differences
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from data_contracts.records import Problem, Trajectory, Turn
from tasks.rollout.environments import checked, environment_of

Files = Mapping[str, str]


class Progress:
    """Measures trajectories of any problems; the same files of a problem are judged once. For use by many threads."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._known: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def of(self, trajectory: Trajectory, problem: Problem) -> tuple[Turn, ...]:
        """The turns with their `progress`; they add up to what the whole rollout gained.

        Raises SandboxError and VerifierError, as the environment's `verify` does.
        """
        turns, before = [], self._share(problem, problem.files)
        for turn, files in zip(trajectory.turns, states(problem.files, trajectory.turns), strict=True):
            after = self._share(problem, files) if turn.changed else before
            turns.append(turn.model_copy(update={"progress": after - before}))
            before = after
        return tuple(turns)

    def _share(self, problem: Problem, files: Files) -> float:
        key = (problem.id, tuple(sorted(files.items())))
        if key not in self._known:
            found = checked(environment_of(problem).verify(problem, files, self._pool))
            self._known[key] = found.passed / found.total
        return self._known[key]


def states(start: Files, turns: tuple[Turn, ...]) -> Iterator[dict[str, str]]:
    """The files after each turn."""
    files = dict(start)
    for turn in turns:
        files = turn.after(files)
        yield files
