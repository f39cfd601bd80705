"""Whatever lies on disk, held to its contract: which table a path holds is told by what is in it.

Parquet, problem pack, manifest.json, audit log, or a folder of sessions -> frames -> validations
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.contract import TABLES, Contract, load_contract
from data_contracts.errors import UserError
from data_contracts.problems import FILE, read_pack
from data_contracts.store import frame_of, frame_of_arrow, read_frame, read_json, read_jsonl
from data_contracts.validate import validate, validate_rollouts
from data_contracts.verdicts import Rejection, Validation

SEGMENTS = "segments.parquet"
WHOLE = ("trajectories.parquet", "rollouts.parquet")
"""Trajectories as verified, else as sampled."""


def check_path(path: Path, table: str | None = None) -> list[tuple[Path, Validation]]:
    """Validate the table in a file, or every table in a folder; UserError where nothing is there to check."""
    if table is not None and table not in TABLES:
        raise UserError(f"--table {table}: use one of {', '.join(TABLES)}")
    if path.is_file():
        return [(path, _check_file(path, table))]
    if not path.is_dir():
        raise UserError(f"{path} does not exist: give a table's file, or a folder that holds some")
    found = [checked for folder in sorted({path, *(p.parent for p in path.rglob(SEGMENTS))}) for checked in _of(folder)]
    if not found:
        raise UserError(f"{path} holds no table: give a run's folder, a problem pack, an audit log, or a file")
    return found


def _of(folder: Path) -> list[tuple[Path, Validation]]:
    if (pack := folder / FILE).is_file():
        return [(pack, _check_file(pack, "problems"))]
    whole = next((folder / name for name in WHOLE if (folder / name).is_file()), None)
    if whole is not None and (folder / SEGMENTS).is_file():
        both = validate_rollouts(read_frame(whole, "trajectories"), read_frame(folder / SEGMENTS, "segments"))
        return list(zip((whole, folder / SEGMENTS), both, strict=True))
    days = sorted(each for each in folder.iterdir() if each.suffix in (".parquet", ".jsonl") and _is_day(each.stem))
    return [(day, validate("audit", _audit_frame(day))) for day in days]


def _check_file(path: Path, table: str | None) -> Validation:
    table = table or _table_of(path)
    if table == "problems":
        return _problems(path)
    if table == "audit":
        return validate("audit", _audit_frame(path))
    if table == "releases":
        return validate("releases", _manifest_frame(load_contract("releases"), path))
    if path.suffix != ".parquet":
        raise UserError(f"{path}: the table {table} is kept as Parquet: give a .parquet file")
    return validate(table, read_frame(path, table))


def _table_of(path: Path) -> str:
    if path.suffix == ".parquet":
        return _table_of_parquet(path)
    if path.suffix == ".jsonl":
        return "audit" if _is_day(path.stem) else "problems"
    if path.suffix == ".json":
        return "releases"
    raise UserError(f"{path}: what table this is cannot be told: give --table, one of {', '.join(TABLES)}")


def _table_of_parquet(path: Path) -> str:
    schema = _parquet(path).schema
    mark = (schema.metadata or {}).get(b"contract", b"").decode("utf-8", "replace").split(" ")[0]
    if mark in TABLES:
        return mark
    likest = max(TABLES, key=lambda table: len({c.name for c in load_contract(table).columns} & set(schema.names)))
    if not {column.name for column in load_contract(likest).columns} & set(schema.names):
        raise UserError(f"{path}: no contract has its columns: give --table, one of {', '.join(TABLES)}")
    return likest


def _parquet(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a Parquet file ({error}): restore it from where it came") from error


def _problems(path: Path) -> Validation:
    """Lines that make no problem are rejections too."""
    reading = read_pack(path)
    found = validate("problems", frame_of("problems", reading.problems))
    bad = [Rejection(None, line.id or f"line {line.line}", "line", line.reason) for line in reading.rejected]
    found.rejected.extend(bad)
    return found


def _audit_frame(path: Path) -> pd.DataFrame:
    if path.suffix == ".parquet":
        return frame_of_arrow(_parquet(path))
    rows = read_jsonl(path).rows
    if not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path}: a line is no JSON object: remove it, the log's own reader says which")
    return pd.DataFrame([{**row, "ts": _time(row.get("ts"))} for row in rows], dtype=object)


def _manifest_frame(contract: Contract, path: Path) -> pd.DataFrame:
    manifest = read_json(path)
    if not isinstance(manifest, dict):
        raise UserError(f"{path}: a manifest is a JSON object: give a release's manifest.json")
    nested = {column.name for column in contract.columns if column.json_shape}
    row = {name: json.dumps(value) if name in nested else value for name, value in manifest.items()}
    return pd.DataFrame([row], dtype=object)


def _time(value: Any) -> Any:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return value


def _is_day(stem: str) -> bool:
    try:
        datetime.strptime(stem, "%Y-%m-%d")
    except ValueError:
        return False
    return True
