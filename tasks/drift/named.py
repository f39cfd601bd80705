"""Which sessions of a drifted window are the ones that drifted, and by which checks.

reference + window + checks that drifted -> mask a check -> {session: checks}
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tasks.drift.config import Check
from tasks.drift.measures import present, shares
from tasks.drift.text import embed

TAIL = 0.05
"""A number is unusual where so few of the reference lie beyond it."""

Mask = NDArray[np.bool_]


def unusual_sessions(reference: pd.DataFrame, window: pd.DataFrame, checks: Sequence[Check]) -> dict[str, list[str]]:
    """Sessions of the window that lie where its drift is, with the names of the checks that say so."""
    found: dict[str, list[str]] = {}
    for check in checks:
        before, now = present(reference, check), present(window, check)
        if len(before) and len(now):
            for session in now["session"][_unusual(check, before, now)]:
                found.setdefault(str(session), []).append(check.name)
    return found


def _unusual(check: Check, reference: pd.DataFrame, window: pd.DataFrame) -> Mask:
    a, b = reference[check.column].to_numpy(), window[check.column].to_numpy()
    match check.kind:
        case "mix":
            before, now = (pd.Series(side).value_counts(normalize=True) for side in (a, b))
            return np.asarray(b == now.sub(before, fill_value=0.0).idxmax())
        case "bag":
            was, held = (pd.DataFrame(shares(side)).fillna(0.0) for side in (a, b))
            risen = held.mean().sub(was.mean(), fill_value=0.0)[held.columns].idxmax()
            return np.asarray(held[risen] > 0.0)
        case "cloud":
            return _far(embed([*a]), embed([*b]))
        case "rate":
            return np.asarray(b == (0.0 if check.direction == "fall" else 1.0))
        case "calibration":
            return np.asarray(window["residual"].abs() > 0.5)
        case _:
            return _in_tail(a, b, check.direction)


def _far(a: NDArray[np.float64], b: NDArray[np.float64]) -> Mask:
    """Further from the middle of the reference than nearly all of the reference."""
    middle = a.mean(axis=0)
    limit = np.quantile(np.linalg.norm(a - middle, axis=1), 1 - TAIL)
    return np.asarray(np.linalg.norm(b - middle, axis=1) > limit)


def _in_tail(a: NDArray[np.float64], b: NDArray[np.float64], direction: str) -> Mask:
    low, high = np.quantile(a, [TAIL, 1 - TAIL])
    above, below = b > high, b < low
    return np.asarray({"any": above | below, "rise": above, "fall": below}[direction])
