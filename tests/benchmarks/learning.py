"""Does the quick start learn: every seed, and the control with shuffled advantages that must not.

    python tests/benchmarks/learning.py [--seeds 0 1 2] [--home FOLDER]

Runs the recipe whole for each seed, and once more with the advantages handed to rollouts at random; prints the
verified success on held-out problems, sampled at temperature 1, as the README's table. A run that is done is read.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "infra" / "recipes" / "quickstart.toml"
HORIZONS = ("short", "medium", "long")
HELD = 3
"""The exit code of a run that a gate held: what the control is to end with."""


def summary_of(home: Path, *changes: str) -> dict[str, Any]:
    """Run the recipe with these changes in a home of its own; its summary."""
    words = [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-m", "flows.cli", "run", str(RECIPE), "--home", str(home), *words]
    code = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode
    if code not in (0, HELD):
        raise SystemExit(f"{' '.join(command)} ended with {code}")
    (file,) = home.glob("quickstart-*/summary.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def row(name: str, summary: dict[str, Any]) -> str:
    """One run as a row of the table."""
    cells = []
    for horizon in HORIZONS:
        sides = [summary["success"][side][horizon] for side in ("before", "after")]
        cells.append(" → ".join(f"{part['rate']:.1%} ({_interval(part['interval'])})" for part in sides))
    return f"| {' | '.join((name, *cells, 'held' if summary.get('held') else 'released'))} |"


def _interval(ends: Sequence[float]) -> str:
    return f"{ends[0]:.0%} to {ends[1]:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Every seed of the quick start, and the shuffled control.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--home", type=Path, default=Path("runs/learning"), help="a folder per run is made in it")
    given = parser.parse_args()
    home = given.home.resolve()
    print(f"| run | {' | '.join(HORIZONS)} | ended |\n|---|---|---|---|---|", flush=True)
    for seed in given.seeds:
        print(row(f"seed {seed}", summary_of(home / f"seed-{seed}", f"seed={seed}")), flush=True)
    control = summary_of(home / "shuffled", "credit.shuffle_across_rollouts=true")
    print(row("advantages shuffled", control), flush=True)


if __name__ == "__main__":
    main()
