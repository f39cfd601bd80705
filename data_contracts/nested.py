"""Rows that lie in a column of another table, as a table of their own.

trajectories with `turns` parsed -> table of turns + the row each came from
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
from pydantic_core import PydanticUndefined

from data_contracts.contract import Contract
from data_contracts.odcs import Column
from data_contracts.records import RECORDS


def unnest(inner: Contract, frame: pd.DataFrame, key: list[str], name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """The rows in column `name` as the table of `inner`, and the index in `frame` that each came from.

    The first column names the row it was in (`key`); a key that a nested row lacks has its record's default.
    """
    lists = frame[name]
    counts = [len(rows) for rows in lists]
    rows = [row for nested in lists for row in nested]
    first, *others = inner.columns
    columns = {first.name: pd.Series(np.repeat(frame[key[0]].to_numpy(dtype=object), counts), dtype=object)}
    columns |= {column.name: _cells(column, inner.name, rows) for column in others}
    return pd.DataFrame(columns), np.repeat(frame.index.to_numpy(), counts)


def _cells(column: Column, table: str, rows: list[dict[str, Any]]) -> pd.Series:
    default = RECORDS[table].model_fields[column.name].get_default()
    absent = None if default is PydanticUndefined else default
    cells = [row.get(column.name, absent) for row in rows]
    if column.json_shape is not None:
        cells = [None if cell is None else json.dumps(cell) for cell in cells]
    elif column.logical_type == "array":
        cells = [list(cell or ()) for cell in cells]
    return pd.Series(cells, dtype=None if cells and column.logical_type in ("integer", "number", "boolean") else object)
