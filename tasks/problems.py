"""Admitted problems, read once: every task of an iteration needs some of them.

problems.jsonl -> problems by id; the same objects until the file changes
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from data_contracts.problems import read_pack
from data_contracts.records import Problem


def admitted(path: Path) -> dict[str, Problem]:
    """The problems of a file that intake wrote, by id, in its order. They are frozen, so they may be shared."""
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> dict[str, Problem]:
    del changed  # part of the key: a file that was written again is read again
    return {problem.id: problem for problem in read_pack(path).problems}
