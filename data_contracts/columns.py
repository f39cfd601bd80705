"""Column checks: what one cell must be, made from the contract as a pandera schema.

Contract -> DataFrameSchema; a failure is named `<column>.<check>`

Types are checked cell by cell instead of by the column's dtype, so that one bad cell costs its row and not the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import pandera.pandas as pa

from data_contracts.contract import Contract
from data_contracts.odcs import Column, Item
from data_contracts.shapes import parses

Holds = Callable[[pd.Series], pd.Series]
INT64 = range(-(2**63), 2**63)
TOGETHER = "unique_together"
_SURROGATE = re.compile("[\ud800-\udfff]")


def pandera_schema(contract: Contract) -> pa.DataFrameSchema:
    """Strict columns, nothing coerced; of rows with one key the first holds."""
    # pandera's own uniqueness raises on a cell that cannot be hashed, and a check skips rows with any null by default
    together = partial(_first_of, contract.unique_together)
    return pa.DataFrameSchema(
        {column.name: _column(column) for column in contract.columns},
        strict=True,
        coerce=False,
        checks=pa.Check(together, name=TOGETHER, error=TOGETHER, ignore_na=False) if contract.unique_together else None,
        name=contract.name,
    )


def _column(column: Column) -> pa.Column:
    checks = [pa.Check(holds, name=name, error=name) for name, holds in _checks(column)]
    return pa.Column(None, checks=checks, nullable=not column.required)


def _checks(column: Column) -> Iterator[tuple[str, Holds]]:
    """Named checks of one column; each but `type` holds for cells of a wrong type, which `type` names."""
    options = column.logical_type_options
    if column.logical_type == "array" and column.items is not None:
        yield from _array_checks(column.items, options.min_items or 0)
        return
    yield "type", partial(_typed, column.logical_type)
    if column.unique:
        yield "unique", lambda cells: ~cells.map(repr).duplicated()
    if column.logical_type == "number":
        yield "finite", lambda cells: ~np.isinf(_numbers(cells))
    if options.minimum is not None:
        yield "minimum", _bound(np.less, options.minimum)
    if options.maximum is not None:
        yield "maximum", _bound(np.greater, options.maximum)
    if options.min_length:
        yield "minLength", _text(partial(_at_least, options.min_length))
    if options.max_length is not None:
        yield "maxLength", _text(partial(_at_most, options.max_length))
    if options.pattern is not None:
        yield "pattern", _text(partial(_matches, re.compile(options.pattern)))
    if column.json_shape is not None:
        yield "json", _text(partial(parses, column.json_shape))
    if (valid := column.valid_values) is not None:
        yield "validValues", _text(frozenset(valid).__contains__)


def _array_checks(item: Item, least: int) -> Iterator[tuple[str, Holds]]:
    yield "type", _cells(lambda cell: _array_of(cell, item))
    if least:
        yield "minItems", _cells(lambda cell: not _is_array(cell) or len(cell) >= least)
    leaf = item
    while leaf.items is not None:
        leaf = leaf.items
    options = leaf.logical_type_options
    if options.minimum is not None:
        yield "items.minimum", _numeric_arrays(lambda cell: bool((cell >= options.minimum).all()))
    if options.maximum is not None:
        yield "items.maximum", _numeric_arrays(lambda cell: bool((cell <= options.maximum).all()))


def _array_of(cell: Any, item: Item) -> bool:
    """Whether the cell is a list or array whose every element is what `item` says."""
    if not _is_array(cell):
        return False
    if len(cell) == 0:
        return True
    if item.logical_type == "array" and item.items is not None:
        return all(_array_of(part, item.items) for part in cell)
    if isinstance(cell, np.ndarray) and cell.dtype.kind in "iuf":
        return item.logical_type == "number" or cell.dtype.kind in "iu"
    return all(_SCALARS[item.logical_type](part) for part in cell)


def _is_integer(cell: Any) -> bool:
    return isinstance(cell, int | np.integer) and not isinstance(cell, bool | np.bool_) and int(cell) in INT64


def _is_array(cell: Any) -> bool:
    return isinstance(cell, list | np.ndarray)


def _encodes(text: str) -> bool:
    """Whether the text is Unicode: half a surrogate pair cannot be written to any file."""
    return text.isascii() or not _SURROGATE.search(text)


_SCALARS: dict[str, Callable[[Any], bool]] = {
    "string": lambda cell: isinstance(cell, str) and _encodes(cell),
    "integer": _is_integer,
    "number": lambda cell: _is_integer(cell) or isinstance(cell, float | np.floating),
    "boolean": lambda cell: isinstance(cell, bool | np.bool_),
    "timestamp": lambda cell: isinstance(cell, datetime) and cell.tzinfo is not None,
}

_DTYPES: dict[str, tuple[Any, ...]] = {
    "integer": ("Int64", "int64"),
    "number": ("float64",),
    "boolean": ("boolean", "bool"),
    "timestamp": ("datetime64[us, UTC]",),
}


def _typed(logical_type: str, cells: pd.Series) -> pd.Series:
    """Whether each cell is of the type; a column whose dtype says so needs no look at its cells."""
    if cells.dtype in _DTYPES.get(logical_type, ()):
        return pd.Series(True, index=cells.index)
    return _cells(_SCALARS[logical_type])(cells)


def _cells(holds: Callable[[Any], bool]) -> Holds:
    return lambda cells: pd.Series([holds(cell) for cell in cells], index=cells.index, dtype=bool)


def _text(holds: Callable[[str], bool]) -> Holds:
    """A check of texts; one that comes again in the column is looked at once."""

    def ask(cells: pd.Series) -> pd.Series:
        once = cache(holds)
        return _cells(lambda cell: not isinstance(cell, str) or once(cell))(cells)

    return ask


def _numeric_arrays(holds: Callable[[np.ndarray], bool]) -> Holds:
    return _cells(lambda cell: (leaves := _leaves(cell)) is None or holds(leaves))


def _leaves(cell: Any) -> np.ndarray | None:
    """All numbers in a (nested) array; None where it holds anything else."""
    if not _is_array(cell):
        return None
    if len(cell) and all(_is_array(part) for part in cell):
        parts = [leaves for part in cell if (leaves := _leaves(part)) is not None]
        return np.concatenate(parts) if parts else None
    if isinstance(cell, list) and not all(_SCALARS["number"](part) for part in cell):
        return None
    array = np.asarray(cell)
    return array if array.dtype.kind in "iuf" else None


def _numbers(cells: pd.Series) -> pd.Series:
    """Cells as float64; those that are no number become NaN."""
    return pd.to_numeric(cells, errors="coerce").astype("float64")


def _bound(breaks: Callable[[Any, float], Any], limit: float) -> Holds:
    return lambda cells: ~breaks(_numbers(cells), limit)


def _first_of(names: list[str], frame: pd.DataFrame) -> pd.Series:
    if not set(names) <= set(frame.columns):
        return pd.Series(True, index=frame.index)
    return ~frame[names].map(repr).duplicated()


def _at_least(least: int, text: str) -> bool:
    return len(text) >= least


def _at_most(most: int, text: str) -> bool:
    return len(text) <= most


def _matches(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.search(text) is not None
