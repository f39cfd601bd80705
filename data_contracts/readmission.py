"""A way back out of quarantine: a rollout that its contract accepts now returns to the tables it was dropped from.

quarantined rows of one rollout + the tables' rows -> validation -> tables with it, rows marked | why not
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from data_contracts.contract import load_contract
from data_contracts.quarantine import Dropped, Quarantine
from data_contracts.store import read_frame, records_of, write_segments, write_trajectories
from data_contracts.validate import validate_rollouts
from data_contracts.verdicts import Rejection

OWNERS = {"trajectories": "id", "segments": "trajectory_id"}
"""The column that names the rollout, by table."""


def readmit(quarantine: Quarantine, row: Dropped, trajectories: Path, segments: Path, why: str) -> list[str]:
    """Put the rollout of a dropped row back, whole; what speaks against it (nothing was written then), or nothing.

    Done again, or after a kill, it ends in the same tables. The rows in quarantine are marked with `why`.
    """
    if row.table not in OWNERS:
        return [f"{row.table} are admitted at intake: mend the row in its source, and run intake again"]
    rollout = row.row.get(OWNERS[row.table])
    if not isinstance(rollout, str):
        return [f"the row does not say which rollout it is of ({OWNERS[row.table]})"]
    kept = [each for each in quarantine.dropped() if each.run_id == row.run_id and _rollout_of(each) == rollout]
    if foreign := sorted({each.rule for each in kept if not _of_contract(each)}):
        return [f"{', '.join(foreign)} is no rule of its contract but was measured: it cannot be asked again here"]
    others = {"trajectories": read_frame(trajectories, "trajectories"), "segments": read_frame(segments, "segments")}
    both = {table: _with(table, others[table], rollout, kept) for table in OWNERS}
    whole, parts = validate_rollouts(both["trajectories"], both["segments"])
    if refused := [*whole.rejected, *parts.rejected]:
        return [_told(rejection) for rejection in refused]
    write_segments(segments, records_of("segments", parts.accepted))
    write_trajectories(trajectories, records_of("trajectories", whole.accepted))
    quarantine.mark_released(kept, why)
    return []


def _rollout_of(row: Dropped) -> Any:
    return row.row.get(OWNERS[row.table]) if row.table in OWNERS else None


def _of_contract(row: Dropped) -> bool:
    """Whether the rule is the contract's: a column's check, a nested table's (both have a dot), or a rule by name."""
    return "." in row.rule or row.rule in {rule.name for rule in load_contract(row.table).rules}


def _with(table: str, others: pd.DataFrame, rollout: str, kept: Iterable[Dropped]) -> pd.DataFrame:
    """The table with the rollout's rows from quarantine in place of any it has of it."""
    rows: Mapping[str, dict[str, Any]] = {each.key: each.row for each in kept if each.table == table}
    rest = others[others[OWNERS[table]] != rollout].astype(object)
    back = pd.DataFrame(list(rows.values()), columns=others.columns, dtype=object)
    return pd.concat([rest, back], ignore_index=True)


def _told(rejection: Rejection) -> str:
    return f"{rejection.key or 'the table'}: {rejection.rule}: {rejection.reason}"
