"""A gate is a named rule over measured evidence; only PASS lets a flow go on.

evidence -> rule -> Gate(verdict, evidence, reason)
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Literal

from pydantic import Field

from data_contracts.records import Record


class Verdict(StrEnum):
    """What a gate says. No data, NaN, or too few samples is INCONCLUSIVE, never PASS."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


class Gate(Record):
    """One verdict with the figures it rests on; `reason` is one sentence for a person."""

    name: str
    verdict: Verdict
    reason: str
    evidence: dict[str, float | int | str | bool | None] = Field(default={})


class GateHeld(RuntimeError):
    """A flow stopped because a gate did not PASS; carries the gate."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(f"gate {gate.name}: {gate.verdict}: {gate.reason}")
        self.gate = gate


def threshold(
    name: str,
    value: float | None,
    limit: float,
    *,
    kind: Literal["at_most", "at_least"],
    n: int,
    minimum_n: int = 1,
    unit: str = "",
) -> Gate:
    """Gate one measured figure against a limit.

    None, NaN, infinities and fewer than `minimum_n` samples are INCONCLUSIVE: +inf never passes, nor does -inf.
    """
    evidence: dict[str, float | int | str | bool | None] = {"limit": limit, "n": n}
    if value is None or not math.isfinite(value):
        return Gate(name=name, verdict=Verdict.INCONCLUSIVE, reason="no finite value was measured", evidence=evidence)
    evidence["value"] = value
    if n < minimum_n:
        reason = f"only {n} samples, {minimum_n} are needed"
        return Gate(name=name, verdict=Verdict.INCONCLUSIVE, reason=reason, evidence=evidence)
    holds = value <= limit if kind == "at_most" else value >= limit
    reason = f"{value:.4g}{unit} {'is' if holds else 'is not'} {kind.replace('_', ' ')} {limit:g}{unit} (n={n})"
    return Gate(name=name, verdict=Verdict.PASS if holds else Verdict.FAIL, reason=reason, evidence=evidence)


def require(*gates: Gate) -> None:
    """Raise `GateHeld` for the first gate that is not a PASS."""
    for gate in gates:
        if gate.verdict is not Verdict.PASS:
            raise GateHeld(gate)
