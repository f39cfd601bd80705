"""Problem packs: a folder with `problems.jsonl`, one problem a line.

problems.jsonl, folders it names -> PackReading(problems, rejected); a rejection names file, line, field and remedy
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from data_contracts.errors import UserError
from data_contracts.folders import FOLDERS, with_folders
from data_contracts.records import Check, Limits, Origin, Problem, Record
from data_contracts.store import write_atomic

FILE = "problems.jsonl"
MODELS: dict[str, type[Record]] = {"visible": Check, "hidden": Check, "limits": Limits, "origin": Origin}


class Rejected(NamedTuple):
    """A line that is no problem: its number (from 1), the id where one could be read, and a sentence with remedy."""

    line: int
    id: str | None
    reason: str


class PackReading(NamedTuple):
    """What a pack held, in the order of its lines; `lines` tells the line of each problem by its id."""

    problems: list[Problem]
    rejected: list[Rejected]
    lines: dict[str, int]


def pack_file(path: str | Path) -> Path:
    """The file of a pack that is given as its folder or its file; UserError where there is none."""
    path = Path(path)
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{file} does not exist: give a folder with {FILE}, one problem a line, or such a file.")
    return file


def read_pack(path: str | Path) -> PackReading:
    """Read a pack's folder or file. A missing file is a UserError; a bad line is rejected and the others are kept."""
    file = pack_file(path)
    reading = PackReading([], [], {})
    for number, line in enumerate(file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            _take(reading, file, number, line)
    return reading


def write_pack(folder: str | Path, problems: Iterable[Problem]) -> Path:
    """Write `problems.jsonl` into the folder, whole or not at all; the path of the file."""
    path = Path(folder) / FILE
    write_atomic(path, "".join(problem.model_dump_json() + "\n" for problem in problems))
    return path


def _take(reading: PackReading, file: Path, number: int, line: bytes) -> None:
    """Put one line among the problems or among the rejected."""
    name: str | None = None
    lines = reading.lines
    try:
        fields = _parse(line)
        name = fields["id"] if isinstance(fields.get("id"), str) else None
        problem = Problem.model_validate(with_folders(fields, file.parent))
        if problem.id in lines:
            raise ValueError(f"id: {problem.id!r} is already used in line {lines[problem.id]}: give it another id")
    except ValidationError as error:
        reasons = "; ".join(_explain(detail) for detail in error.errors())
        reading.rejected.append(Rejected(number, name, f"{file}:{number}: {reasons}"))
    except ValueError as error:
        reading.rejected.append(Rejected(number, name, f"{file}:{number}: {error}"))
    else:
        lines[problem.id] = number
        reading.problems.append(problem)


def _parse(line: bytes) -> dict[str, Any]:
    """The object on the line; ValueError with the remedy where there is none."""
    try:
        fields = json.loads(line.decode(), object_pairs_hook=_without_repeats)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}: save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno}): write one object on one line") from error
    except RecursionError as error:
        raise ValueError("nested too deeply: write one flat object on one line") from error
    if not isinstance(fields, dict):
        raise ValueError(f"a {type(fields).__name__} and no object: write one object on one line")
    return fields


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice}: given twice in one object: keep one")
    return fields


def _explain(detail: ErrorDetails) -> str:
    """`field: what is wrong: remedy` for one of pydantic's findings."""
    field = ".".join(str(part) for part in detail["loc"]) or "problem"
    message = detail["msg"].removeprefix("Value error, ")
    match detail["type"]:
        case "missing":
            return f"{field}: missing: add it"
        case "extra_forbidden":
            return f"{field}: unknown field: {_spelling(detail['loc'])}"
        case "string_pattern_mismatch":
            return f"{field}: {detail['input']!r} is no name: use letters, digits, '.', '-' and '_'"
        case "too_short" | "string_too_short":
            return f"{field}: empty: give at least one"
        case "value_error":
            return f"{field}: {message}"
        case _:
            return f"{field}: {message}, got {_short(detail['input'])}: correct the value"


def _spelling(loc: tuple[int | str, ...]) -> str:
    """The remedy for an unknown field: the field that was probably meant."""
    known = MODELS.get(str(loc[0]), Problem) if len(loc) > 1 else Problem
    names = [*known.model_fields, *(FOLDERS if known is Problem else ())]
    close = difflib.get_close_matches(str(loc[-1]), names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"remove it (known: {', '.join(known.model_fields)})"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
