"""What a changed contract means for whoever reads its tables, and whether its version says so.

(old, new) -> changes -> the part of the version that must move: major breaks readers, minor checks or adds, patch words
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from data_contracts.contract import FOLDER, HISTORY, SUFFIX, TABLES, Contract, load_contract, parse_contract
from data_contracts.errors import UserError
from data_contracts.odcs import Column

Weight = Literal["major", "minor", "patch"]
WEIGHTS: tuple[Weight, ...] = ("major", "minor", "patch")


class Change(NamedTuple):
    """One difference and the part of the version that must move for it."""

    weight: Weight
    what: str


def changes(old: Contract, new: Contract) -> list[Change]:
    """Every difference that matters, those that break readers first."""
    before, after = ({column.name: column for column in one.columns} for one in (old, new))
    found = [Change("major", f"column {name} is gone") for name in before.keys() - after.keys()]
    found += [Change("minor", f"column {name} is new") for name in after.keys() - before.keys()]
    for name in before.keys() & after.keys():
        found += _of_column(before[name], after[name])
    if old.key != new.key:
        found.append(Change("major", f"the key is {', '.join(new.key)}, was {', '.join(old.key)}"))
    if new.minimum_rows < old.minimum_rows:
        found.append(Change("major", f"{new.minimum_rows} rows are enough, {old.minimum_rows} were needed"))
    found += _of_checks(old, new)
    if not found and old.model_dump(exclude={"version"}) != new.model_dump(exclude={"version"}):
        found.append(Change("patch", "wording"))
    return sorted(found, key=lambda change: (WEIGHTS.index(change.weight), change.what))


def refusal(old: Contract, new: Contract) -> str | None:
    """Why the new version does not say what changed, with the remedy; None where it does."""
    found = changes(old, new)
    was, now = (_numbers(one.version) for one in (old, new))
    if old.name != new.name:
        return f"{old.name} and {new.name} are two tables: compare versions of one"
    if now < was or (now > was and not found):
        return f"{new.name} {new.version} follows {old.version}: give it a version that says what changed"
    if not found:
        return None
    heaviest = found[0]
    part = WEIGHTS.index(heaviest.weight)
    if now[: part + 1] > was[: part + 1]:
        return None
    wanted = ".".join(map(str, [*was[:part], was[part] + 1, *([0] * (2 - part))]))
    return (
        f"{new.name} {new.version}: {heaviest.what}, so it must be at least {wanted}: move the version, "
        f"copy the contract to {HISTORY.name}/, and say in migrations.py how older files become it"
    )


def versions(table: str) -> list[Contract]:
    """Every version of a table's contract that was committed, oldest first."""
    found = [parse_contract(path, resolved=False) for path in HISTORY.glob(f"{table}-*{SUFFIX}")]
    return sorted(found, key=lambda contract: _numbers(contract.version))


def contract_at(place: str) -> Contract:
    """A contract by file, by table (`segments`), or by table and version (`segments@1.1.0`)."""
    table, _, version = place.partition("@")
    if table not in TABLES:
        return parse_contract(Path(place), resolved=False)
    if not version:
        return load_contract(table)
    path = HISTORY / f"{table}-{version}{SUFFIX}"
    if not path.is_file():
        known = ", ".join(contract.version for contract in versions(table))
        raise UserError(f"{FOLDER} has no version {version} of {table}: use one of {known}")
    return parse_contract(path, resolved=False)


def _of_column(old: Column, new: Column) -> Iterator[Change]:
    name = old.name
    for what in ("logical_type", "physical_type", "json_shape", "rows_of", "items"):
        was, now = getattr(old, what), getattr(new, what)
        if was != now:
            added = was is None and what == "rows_of"
            yield Change("minor" if added else "major", f"{name}: {what} differs")
    if old.required and not new.required:
        yield Change("major", f"{name} may be null")
    if new.required and not old.required:
        yield Change("minor", f"{name} may not be null")
    if old.unique and not new.unique:
        yield Change("major", f"{name} is no longer unique")
    was, now = set(old.valid_values or ()), set(new.valid_values or ())
    if (added_values := now - was) or (was and not now):
        yield Change("major", f"{name} may be {', '.join(sorted(added_values)) or 'anything'}")
    elif was - now:
        yield Change("minor", f"{name} is never {', '.join(sorted(was - now))}")
    yield from _of_bounds(old, new)


def _of_bounds(old: Column, new: Column) -> Iterator[Change]:
    """A wider bound lets values through that readers were never shown."""
    was, now = old.logical_type_options, new.logical_type_options
    for bound, sign in (("minimum", 1), ("min_length", 1), ("min_items", 1), ("maximum", -1), ("max_length", -1)):
        before, after = getattr(was, bound), getattr(now, bound)
        if before != after:
            wider = after is None or (before is not None and sign * after < sign * before)
            yield Change("major" if wider else "minor", f"{old.name}: {bound} is {after}, was {before}")
    if was.pattern != now.pattern:
        yield Change("major" if was.pattern else "minor", f"{old.name}: pattern differs")


def _of_checks(old: Contract, new: Contract) -> Iterator[Change]:
    before, after = ({q.name: q for q in one.quality if q.name} for one in (old, new))
    for name in before.keys() - after.keys():
        yield Change("major" if before[name].severity == "error" else "minor", f"{name} is no longer checked")
    for name in after.keys() - before.keys():
        yield Change("minor", f"{name} is checked")
    for name in before.keys() & after.keys():
        was, now = before[name], after[name]
        if (was.severity, was.engine == "greatExpectations" and was.implementation) != (
            now.severity,
            now.engine == "greatExpectations" and now.implementation,
        ):
            yield Change("minor", f"{name} is checked differently")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
