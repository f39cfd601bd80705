"""Files that an earlier version of a contract wrote, as its newest says: read, migrated, announced once.

Arrow table marked `segments 1.1.0` -> step, step -> table of `segments 1.3.0`
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

import pyarrow as pa

from data_contracts.contract import load_contract
from data_contracts.errors import UserError

Step = Callable[[pa.Table], pa.Table]
log = logging.getLogger(__name__)


def migrated(arrow: pa.Table, table: str, path: str) -> pa.Table:
    """The table in its contract's newest version; one without a mark is taken to be of it.

    A table of another contract, a later version, or one that no step starts from is a UserError that names `path`.
    """
    name, version = _mark(arrow, table)
    newest = load_contract(table).version
    if (name, version) in STEPS and name == table:
        _announce(table, version, newest)
    while name == table and (name, version) in STEPS:
        version, step = STEPS[name, version]
        arrow = step(arrow)
    if (name, version) != (table, newest):
        raise UserError(
            f"{path}: columns differ from the contract {table} {newest}, it was written as {name} {version}: "
            "read it with the version that wrote it, or start a new run"
        )
    return arrow


def _mark(arrow: pa.Table, table: str) -> tuple[str, str]:
    mark = (arrow.schema.metadata or {}).get(b"contract", b"").decode("utf-8", "replace")
    name, _, version = mark.partition(" ")
    return (name, version) if name else (table, load_contract(table).version)


@cache
def _announce(table: str, version: str, newest: str) -> None:
    log.warning("%s of contract %s are read as %s", table, version, newest)


def _as_it_is(arrow: pa.Table) -> pa.Table:
    """Only checks were added, or keys of nested JSON whose absence means their default."""
    return arrow


def _with_nulls(*names: str) -> Step:
    """Columns that nothing was recorded in before."""

    def step(arrow: pa.Table) -> pa.Table:
        wanted = load_contract("segments").arrow()
        for name in names:
            arrow = arrow.append_column(wanted.field(name), pa.nulls(arrow.num_rows, wanted.field(name).type))
        return arrow.select([name for name in wanted.names if name in arrow.column_names])

    return step


STEPS: dict[tuple[str, str], tuple[str, Step]] = {
    ("segments", "1.0.0"): ("1.1.0", _with_nulls("policy_numbers")),
    ("segments", "1.1.0"): ("1.2.0", _with_nulls("experts", "experts_per_token")),
    ("segments", "1.2.0"): ("1.3.0", _as_it_is),
    ("trajectories", "1.0.0"): ("2.0.0", _as_it_is),
    ("trajectories", "2.0.0"): ("2.1.0", _as_it_is),
    ("trajectories", "2.1.0"): ("2.2.0", _as_it_is),
    ("trajectories", "2.2.0"): ("3.0.0", _as_it_is),
}
"""By table and version: the version that comes next, and how a table becomes it."""
