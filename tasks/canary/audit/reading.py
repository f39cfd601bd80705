"""Reading the audit log, while it is written too.

files of the days -> one table, oldest row first -> the sessions that may be learned from
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_contracts.store import PANDAS_TYPES
from tasks.canary.audit.days import Day, conformed, days_of, row_of, whole_lines
from tasks.canary.audit.rows import SCHEMA


def read_audit(
    folder: Path, days: Sequence[str] | None = None, *, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Every row, oldest first, of the days named ("2026-11-30"; default: all), closed or still open.

    `columns`: those wanted (default: all); without `prompt` and `completion` a long log is read much faster.
    """
    wanted = [day for day in days_of(folder) if days is None or day.name in days]
    table = pa.concat_tables([SCHEMA.empty_table(), *(_table_of(day) for day in wanted)])
    table = table.sort_by([("ts", "ascending")]).select(list(columns or SCHEMA.names))
    return table.to_pandas(types_mapper=PANDAS_TYPES.get)


def training_sessions(folder: Path, days: Sequence[str] | None = None) -> pd.DataFrame:
    """The rows of sessions whose tenant agreed that they are learned from, shadow answers left out.

    One row without that agreement keeps its whole session out.
    """
    rows = read_audit(folder, days)
    rows = rows[~rows["shadow"].fillna(False)]
    agreed = rows.groupby("session")["trainable"].transform("all") if len(rows) else rows["trainable"]
    return rows[agreed.fillna(False).astype(bool)]


def _table_of(day: Day) -> pa.Table:
    """A day's rows, each once. Lines first: a day that is closed meanwhile is then in the Parquet file."""
    lines = pa.Table.from_pylist([row_of(line) for line in whole_lines(day.lines)], schema=SCHEMA)
    if not day.table.exists():
        return lines
    closed = conformed(pq.read_table(day.table))
    last = pc.max(closed["seq"]).as_py()
    fresh = lines if last is None else lines.filter(pc.greater(lines["seq"], last))
    return pa.concat_tables([closed, fresh])
