"""Column checks: what one cell must be, made from the contract as a pandera schema.

Contract -> DataFrameSchema; a failure is named `<column>.<check>`

Types are checked cell by cell instead of by the column's dtype, so that one bad cell costs its row and not the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import pandera.pandas as pa

from data_contracts.contract import Column, Contract, Item

Holds = Callable[[pd.Series], pd.Series]
FIRST_COUNTS: Literal["exclude_first"] = "exclude_first"
"""Of rows with one key, the first is kept."""


def pandera_schema(contract: Contract) -> pa.DataFrameSchema:
    """Strict columns, nothing coerced; a row with a duplicate key fails, the first one excepted."""
    return pa.DataFrameSchema(
        {column.name: _column(column) for column in contract.columns},
        strict=True,
        coerce=False,
        unique=contract.unique_together or None,
        report_duplicates=FIRST_COUNTS,
        name=contract.name,
    )


def _column(column: Column) -> pa.Column:
    checks = [pa.Check(holds, name=name, error=name) for name, holds in _checks(column)]
    return pa.Column(
        None,
        checks=checks,
        nullable=not column.required,
        unique=column.unique,
        report_duplicates=FIRST_COUNTS,
    )


def _checks(column: Column) -> Iterator[tuple[str, Holds]]:
    """Named checks of one column; each but `type` holds for cells of a wrong type, which `type` names."""
    options = column.logical_type_options
    if column.logical_type == "array" and column.items is not None:
        yield from _array_checks(column.items, options.min_items or 0)
        return
    yield "type", _cells(_SCALARS[column.logical_type])
    if column.logical_type == "number":
        yield "finite", lambda cells: ~np.isinf(_numbers(cells))
    if options.minimum is not None:
        yield "minimum", _bound(np.less, options.minimum)
    if options.maximum is not None:
        yield "maximum", _bound(np.greater, options.maximum)
    if options.min_length:
        yield "minLength", _text(partial(_at_least, options.min_length))
    if options.pattern is not None:
        yield "pattern", _text(partial(_matches, re.compile(options.pattern)))
    if column.is_json:
        yield "json", _text(_parses)
    if (valid := column.valid_values) is not None:
        yield "validValues", _text(frozenset(valid).__contains__)


def _array_checks(item: Item, least: int) -> Iterator[tuple[str, Holds]]:
    options = item.logical_type_options
    is_typed = _cells(lambda cell: _array_of(cell, item))
    yield "type", is_typed
    if least:
        yield "minItems", _arrays(lambda cell: len(cell) >= least)
    if options.minimum is not None:
        yield "items.minimum", _numeric_arrays(lambda cell: bool((cell >= options.minimum).all()))
    if options.maximum is not None:
        yield "items.maximum", _numeric_arrays(lambda cell: bool((cell <= options.maximum).all()))


def _array_of(cell: Any, item: Item) -> bool:
    """Whether the cell is a list or array whose every element is what `item` says."""
    if not isinstance(cell, list | np.ndarray):
        return False
    if len(cell) == 0:
        return True
    if item.logical_type == "array" and item.items is not None:
        return all(_array_of(part, item.items) for part in cell)
    if isinstance(cell, np.ndarray) and cell.dtype.kind in "iuf":
        return item.logical_type == "number" or cell.dtype.kind in "iu"
    return all(_SCALARS[item.logical_type](part) for part in cell)


def _is_integer(cell: Any) -> bool:
    return isinstance(cell, int | np.integer) and not isinstance(cell, bool | np.bool_)


_SCALARS: dict[str, Callable[[Any], bool]] = {
    "string": lambda cell: isinstance(cell, str),
    "integer": _is_integer,
    "number": lambda cell: _is_integer(cell) or isinstance(cell, float | np.floating),
    "boolean": lambda cell: isinstance(cell, bool | np.bool_),
}


def _cells(holds: Callable[[Any], bool]) -> Holds:
    return lambda cells: pd.Series([holds(cell) for cell in cells], index=cells.index, dtype=bool)


def _text(holds: Callable[[str], bool]) -> Holds:
    return _cells(lambda cell: not isinstance(cell, str) or holds(cell))


def _arrays(holds: Callable[[Any], bool]) -> Holds:
    return _cells(lambda cell: not isinstance(cell, list | np.ndarray) or holds(cell))


def _numeric_arrays(holds: Callable[[np.ndarray], bool]) -> Holds:
    def of_array(cell: Any) -> bool:
        array = np.asarray(cell)
        return array.dtype.kind not in "iuf" or holds(array)

    return _arrays(of_array)


def _numbers(cells: pd.Series) -> pd.Series:
    """Cells as float64; those that are no number become NaN."""
    return pd.to_numeric(cells, errors="coerce").astype("float64")


def _bound(breaks: Callable[[Any, float], Any], limit: float) -> Holds:
    return lambda cells: ~breaks(_numbers(cells), limit)


def _at_least(least: int, text: str) -> bool:
    return len(text) >= least


def _matches(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.search(text) is not None


def _parses(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except json.JSONDecodeError:
        return False
