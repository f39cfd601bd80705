"""Cross-field rules: what no single column shows; each contract names those it lives by.

frame (and companion tables) -> one bool a row: does the rule hold there

A rule sees only rows that passed every column check and every earlier rule, so it may rely on types and on those;
it sees JSON columns parsed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

import numpy as np


class Rule(NamedTuple):
    """A rule as a contract names it: `holds(frame, *companions)` gives one bool a row."""

    name: str
    holds: Callable[..., np.ndarray]
    tables: tuple[str, ...]
    description: str


def rule_named(function: str, tables: tuple[str, ...], description: str) -> Rule:
    """The rule at `data_contracts.rules.<module>.<name>`; LookupError where there is none or it takes other tables."""
    path, _, name = function.rpartition(".")
    try:
        found = getattr(import_module(path), name, None)
    except ModuleNotFoundError as error:
        raise LookupError(f"there is no module {path}") from error
    if not inspect.isfunction(found) or found.__module__ != path:
        raise LookupError(f"{path} has no rule {name!r}")
    wanted = tuple(inspect.signature(found).parameters)[1:]
    if wanted != tables:
        raise LookupError(f"the rule {name!r} takes the tables {list(wanted)}, the contract gives {list(tables)}")
    return Rule(name, found, tables, description)
