"""What validation found: rejections a row, and what a gate may say of a table.

rejections, accepted rows -> Validation -> Gate; expectations -> ExpectationReport -> Gate
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from data_contracts.gates import Gate, Verdict


class Rejection(NamedTuple):
    """One row and one rule it breaks; `row` is its position in the validated frame, None for the table as a whole."""

    row: int | None
    key: str
    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Validation:
    """The rows that hold, and a rejection for each rule that a dropped row broke.

    `skipped` names rules that need a table which was not given: nothing is known about them.
    """

    table: str
    accepted: pd.DataFrame
    rejected: list[Rejection]
    skipped: tuple[str, ...]
    source: pd.DataFrame

    @property
    def counts(self) -> dict[str, int]:
        """How often each rule was broken."""
        return dict(Counter(rejection.rule for rejection in self.rejected))

    @property
    def dropped(self) -> int:
        """How many rows were not accepted."""
        return len(self.source) - len(self.accepted)

    def rows_with_reasons(self) -> Iterator[tuple[Rejection, dict[str, Any]]]:
        """Each rejection with the row it is about (empty for the table as a whole), as the quarantine keeps it."""
        for rejection in self.rejected:
            row = {} if rejection.row is None else self.source.iloc[rejection.row].to_dict()
            yield rejection, {str(name): value for name, value in row.items()}

    def gate(self, *, max_dropped_share: float = 0.0) -> Gate:
        """PASS when every rule was asked and at most that share of rows was dropped; no row at all is INCONCLUSIVE."""
        share = self.dropped / len(self.source) if len(self.source) else None
        whole_table = [rejection.reason for rejection in self.rejected if rejection.row is None]
        unasked = [f"rules not asked: {', '.join(self.skipped)}"] if self.skipped else []
        verdict = Verdict.INCONCLUSIVE if unasked or share is None else Verdict.PASS
        if share is not None and (whole_table or share > max_dropped_share):
            verdict = Verdict.FAIL
        reason = "; ".join([f"{self.dropped} of {len(self.source)} rows dropped", *whole_table, *unasked])
        evidence: dict[str, Any] = {"rows": len(self.source), "dropped": self.dropped, **self.counts}
        return Gate(name=f"{self.table}_contract", verdict=verdict, reason=reason, evidence=evidence)


@dataclass(frozen=True, slots=True)
class ExpectationReport:
    """What Great Expectations said of a frozen batch: `failed` as `column: expectation`, `evaluated` of them asked.

    `noted` failed too, but only warn. `pages` (HTML) show all of it.
    """

    table: str
    failed: list[str]
    evaluated: int
    rows: int
    noted: tuple[str, ...] = ()
    pages: tuple[str, ...] = field(default=(), repr=False)

    @property
    def passed(self) -> bool:
        """Whether everything that holds a batch was met."""
        return not self.failed and self.evaluated > 0 and self.rows > 0

    def gate(self) -> Gate:
        """PASS when every expectation that holds was met by a batch that is not empty."""
        verdict = Verdict.PASS if self.passed else Verdict.FAIL
        if self.rows == 0 or self.evaluated == 0:
            verdict = Verdict.INCONCLUSIVE
        missed = len(self.failed) + len(self.noted)
        met = f"{self.evaluated - missed} of {self.evaluated} expectations met by {self.rows} rows"
        reason = "; ".join([met, *self.failed, *(f"warning: {each}" for each in self.noted)])
        evidence: dict[str, Any] = {"rows": self.rows, "evaluated": self.evaluated, "failed": len(self.failed)}
        if self.noted:
            evidence["warnings"] = len(self.noted)
        return Gate(name=f"{self.table}_expectations", verdict=verdict, reason=reason, evidence=evidence)
