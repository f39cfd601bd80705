"""Files: atomic products, Parquet tables in the shape of their contracts, and append-only JSON lines.

records -> Arrow table (contract's types) -> Parquet, and back without loss

A product is written beside its place and moved there in one step: after a kill it is there whole, or not at all.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from data_contracts.contract import Contract, load_contract
from data_contracts.errors import UserError
from data_contracts.migrations import migrated
from data_contracts.records import RECORDS, Record, Segment, Trajectory

PANDAS_TYPES = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
"""Nullable types, so that a null in an integer column stays one bad cell and does not turn the column into floats."""

R = TypeVar("R", bound=Record)


class Lines(NamedTuple):
    """What a JSON-lines file held: its rows, and how many torn last lines were dropped (0 or 1)."""

    rows: list[Any]
    torn: int


def write_atomic(path: str | Path, content: bytes | str) -> None:
    """Write text (UTF-8) or bytes so that the file appears whole or not at all; its folder is made where missing."""
    data = content.encode() if isinstance(content, str) else content
    _move_into_place(Path(path), lambda temporary: temporary.write_bytes(data))


def write_json(path: str | Path, obj: Any) -> None:
    """Write strict JSON atomically; records become objects, a float that is not finite becomes null ("no value")."""
    text = json.dumps(_strict(obj), ensure_ascii=False, indent=1, allow_nan=False)
    write_atomic(path, text.encode("utf-8", "backslashreplace") + b"\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file; a broken one is a UserError naming file and line."""
    try:
        return json.loads(Path(path).read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not JSON ({error}): delete the file, it is written again") from error


def append_jsonl(path: str | Path, *lines: str) -> None:
    """Append lines of JSON and force them to disk together; a torn tail that a kill left is cut off first."""
    if any("\n" in line for line in lines):
        raise ValueError("a JSON line must not hold a line break: serialise without indent")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        _mend_tail(file)
        file.write("".join(f"{line}\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())


def read_jsonl(path: str | Path) -> Lines:
    """Read JSON lines; a missing file has none. A torn last line is dropped and counted, any other is a UserError."""
    if not Path(path).exists():
        return Lines([], 0)
    *whole, tail = Path(path).read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(whole, start=1):
        try:
            rows.append(json.loads(line))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path}:{number}: not JSON ({error}): remove that line and start again") from error
    if not tail:
        return Lines(rows, 0)
    return Lines([*rows, json.loads(tail)], 0) if _is_whole(tail) else Lines(rows, 1)


def write_trajectories(path: str | Path, trajectories: Sequence[Trajectory]) -> None:
    """Write `trajectories` as Parquet: scalars as typed columns, nested parts as JSON text."""
    _write_table(Path(path), _to_arrow("trajectories", trajectories))


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """The trajectories in a Parquet file, equal to those written."""
    return _to_records("trajectories", _read_table(path, "trajectories"), Trajectory)


def write_segments(path: str | Path, segments: Sequence[Segment]) -> None:
    """Write `segments` as Parquet: token columns as typed lists, log-probabilities in float64."""
    _write_table(Path(path), _to_arrow("segments", segments))


def read_segments(path: str | Path) -> list[Segment]:
    """The segments in a Parquet file, equal to those written."""
    return _to_records("segments", _read_table(path, "segments"), Segment)


def frame_of(table: str, records: Iterable[Record]) -> pd.DataFrame:
    """The records as the frame that `validate` and `expect` take: nullable pandas types, arrays in list columns."""
    return frame_of_arrow(_to_arrow(table, records))


def records_of(table: str, frame: pd.DataFrame) -> list[Any]:
    """The records of a validated frame; a row that no record can be made of raises pydantic's ValidationError."""
    arrow = pa.Table.from_pandas(frame, schema=load_contract(table).arrow(), preserve_index=False)
    return _to_records(table, arrow, RECORDS[table])


def read_frame(path: str | Path, table: str) -> pd.DataFrame:
    """The table of a Parquet file as a frame, without making records of its rows."""
    return frame_of_arrow(_read_table(path, table))


def _to_arrow(table: str, records: Iterable[Record]) -> pa.Table:
    contract = load_contract(table)
    rows = [_row(contract, record.model_dump(mode="json")) for record in records]
    return pa.Table.from_pylist(rows, schema=contract.arrow())


def _row(contract: Contract, fields: dict[str, Any]) -> dict[str, Any]:
    for column in contract.columns:
        if column.json_shape and fields[column.name] is not None:
            fields[column.name] = json.dumps(fields[column.name], separators=(",", ":"))
    return fields


def _to_records(table: str, arrow: pa.Table, record: type[R]) -> list[R]:
    nested = [column.name for column in load_contract(table).columns if column.json_shape]
    rows = arrow.to_pylist()
    for row in rows:
        row.update({name: json.loads(row[name]) for name in nested if row[name] is not None})
    return [record.model_validate(row) for row in rows]


def frame_of_arrow(arrow: pa.Table) -> pd.DataFrame:
    """An Arrow table as a frame of nullable pandas types."""
    return arrow.to_pandas(types_mapper=PANDAS_TYPES.get)


def _write_table(path: Path, arrow: pa.Table) -> None:
    _move_into_place(path, lambda temporary: pq.write_table(arrow, temporary, compression="zstd"))


def _read_table(path: str | Path, table: str) -> pa.Table:
    """The file's table in its contract's newest version; one of other columns is a UserError."""
    try:
        arrow = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a Parquet file ({error}): delete it, it is written again") from error
    arrow = migrated(arrow, table, str(path))
    expected = load_contract(table)
    if not arrow.schema.equals(expected.arrow()):
        different = sorted({f.name for f in set(arrow.schema) ^ set(expected.arrow())})
        message = f"{path}: columns differ from the contract {table} {expected.version} ({', '.join(different)})"
        raise UserError(f"{message}: read it with the version that wrote it, or start a new run")
    return arrow


def _move_into_place(path: Path, write: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write(temporary)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _strict(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _strict(value.model_dump(mode="json"))
    if isinstance(value, dict):
        return {str(key): _strict(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_whole(tail: bytes) -> bool:
    """Whether a last line without line break lacks nothing else: an object, a list or a text is closed by its end."""
    try:
        return isinstance(json.loads(tail), dict | list | str)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return False


def _mend_tail(file: Any) -> None:
    """Leave the file ending in a line break: close a whole last line, cut a torn one."""
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    content = file.read()
    start = content.rfind(b"\n") + 1
    if _is_whole(content[start:]):
        file.write(b"\n")
    else:
        file.truncate(start)
