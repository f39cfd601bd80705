"""An evaluation's report as the rows of a table.

report.json -> one row per mode and horizon
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_contracts.store import read_json


def evaluation_rows(report: Path) -> list[dict[str, Any]]:
    """mode, horizon, n, success with its 95 % interval, training reward; what was left out, by ending."""
    rows = []
    for mode, found in read_json(report).items():
        for horizon, part in found["horizons"].items():
            if part["n"]:
                rows.append({"mode": mode, "horizon": horizon, "n": part["n"], **_figures(part)})
    return rows


def _figures(part: dict[str, Any]) -> dict[str, Any]:
    return {
        "success": f"{part['rate']:.1%}",
        "95 % interval": f"{part['low']:.1%} to {part['high']:.1%}",
        "training reward": round(part["training_reward"], 3),
        "left out": ", ".join(f"{count} {reason}" for reason, count in part["excluded"].items()),
    }
