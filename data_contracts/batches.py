"""Batches beside each other: what a batch is like in figures, and how far the next may be from the last accepted ones.

frame -> measures -> statistics; statistics of the last accepted -> bounds for the next
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from data_contracts.contract import Contract, load_contract
from data_contracts.measures import MEASURES
from data_contracts.odcs import Quality
from data_contracts.store import append_jsonl, read_jsonl, write_atomic
from data_contracts.verdicts import ExpectationReport

Statistics = dict[str, float]
"""One figure a check across batches, by its name."""
LAST = 5
"""The accepted batches that the next is compared with."""
QUANTILES = {"tenth": 0.1, "median": 0.5, "ninetieth": 0.9}


class Bounds(NamedTuple):
    """Where a figure of the next batch may lie."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the batches of a run were like: `<table>.jsonl`, a line an accepted batch; Data Docs pages of all."""

    folder: Path

    def before(self, table: str, number: int) -> list[Statistics]:
        """Statistics of the last accepted batches before `number`, oldest first."""
        lines = {row["batch"]: row["statistics"] for row in read_jsonl(self._file(table)).rows}
        return [lines[batch] for batch in sorted(lines) if batch < number][-LAST:]

    def accept(self, table: str, number: int, statistics: Statistics) -> None:
        """Note an accepted batch; of one that is noted again (a stage run twice) the last holds."""
        append_jsonl(self._file(table), json.dumps({"batch": number, "statistics": statistics}, allow_nan=False))

    def show(self, number: int, reports: Iterable[ExpectationReport]) -> None:
        """Keep the Data Docs pages of a batch: `00003-segments-0.html`, and so on."""
        for report in reports:
            for part, page in enumerate(report.pages):
                write_atomic(self.folder / f"{number:05d}-{report.table}-{part}.html", page)

    def _file(self, table: str) -> Path:
        return self.folder / f"{table}.jsonl"


def measures_of(contract: Contract, frame: pd.DataFrame) -> pd.DataFrame:
    """The numbers a row that the contract's checks across batches look at."""
    return pd.DataFrame({name: MEASURES[name](frame) for name in contract.measures}, index=frame.index)


def statistics_of(table: str, frame: pd.DataFrame) -> Statistics:
    """What a batch that is not empty is like: one figure for each of the contract's checks across batches."""
    contract = load_contract(table)
    measured = measures_of(contract, frame)
    return {quality.name or "": _figure(quality, measured) for quality in contract.across}


def bounds(quality: Quality, before: Sequence[Statistics]) -> Bounds | None:
    """Where the figure may lie beside those before; None where no accepted batch has it."""
    figures = [one[quality.name] for one in before if quality.name in one]
    if not figures or quality.implementation is None:
        return None
    centre = float(np.median(figures))
    room = max(quality.implementation.relative * abs(centre), quality.implementation.absolute)
    return Bounds(centre - room, centre + room)


def _figure(quality: Quality, measured: pd.DataFrame) -> float:
    assert quality.implementation is not None  # a check across batches has one
    wanted, name = quality.implementation.expectation, quality.implementation.measure
    if name is None or wanted is None:
        return float(len(measured))
    return float(measured[name].mean() if wanted == "mean" else measured[name].quantile(QUANTILES[wanted]))
