"""What rules of several tables are made of: verdicts a row, majorities, and ragged columns as flat arrays.

column of lists -> Ragged(values, lengths) -> one verdict a row, without a loop over tokens
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd


def each(verdicts: Iterable[bool]) -> np.ndarray:
    """The verdicts as an array, one a row."""
    return np.fromiter(verdicts, dtype=bool)


def is_list(value: object) -> bool:
    """Whether a cell holds a list; null and scalars do not."""
    return isinstance(value, list | np.ndarray)


def with_majority(keys: pd.Series, values: pd.Series) -> np.ndarray:
    """Whether a row's value is held by more than half of the rows with its key."""
    pairs = pd.DataFrame({"key": keys, "value": values})
    same = pairs.groupby(["key", "value"])["value"].transform("size")
    of_key = pairs.groupby("key")["value"].transform("size")
    return (2 * same > of_key).to_numpy(dtype=bool)


class Ragged:
    """A column of number lists: `values` of all rows one after another, `lengths` a row; a null row has length 0."""

    def __init__(self, cells: Iterable[Any]) -> None:
        arrays = [np.asarray(cell) if is_list(cell) else _NONE for cell in cells]
        self.lengths = np.fromiter((len(array) for array in arrays), dtype=np.int64, count=len(arrays))
        self.values: np.ndarray = np.concatenate([_NONE, *arrays]) if any(self.lengths) else np.empty(0)

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each row begins among the values, and the end of the last."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def rows(self) -> np.ndarray:
        """The row of each value."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def positions(self) -> np.ndarray:
        """Position of each value within its row."""
        return np.arange(len(self.values)) - self.starts[self.rows]

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sum a row of numbers that lie along the values."""
        total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return total[self.starts[1:]] - total[self.starts[:-1]]

    def all(self, holds: np.ndarray) -> np.ndarray:
        """Whether every value of a row holds; a row without values does."""
        return self.sums(~holds) == 0


class Runs(NamedTuple):
    """Marked stretches: the row, the turn, where it starts in the row and how many tokens are marked."""

    row: np.ndarray
    turn: np.ndarray
    start: np.ndarray
    tokens: np.ndarray
    last: np.ndarray


def sampled_runs(mask: Ragged, turns: Ragged) -> Runs:
    """The sampled tokens of each turn in each row; both columns have equal lengths, turns never fall."""
    marked = np.flatnonzero(mask.values == 1)
    rows, of_turn, positions = mask.rows[marked], turns.values[marked], mask.positions[marked]
    first = np.ones(len(marked), dtype=bool)
    first[1:] = (np.diff(rows) != 0) | (np.diff(of_turn) != 0)
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], len(marked))
    return Runs(rows[starts], of_turn[starts], positions[starts], ends - starts, positions[ends - 1])


_NONE = np.empty(0, dtype=np.int8)
