"""The closing table: what a person sees when a run has ended.

summary.json -> success before and after, gates, release, where to look next
"""

from __future__ import annotations

import json
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasks.paths import RunFolder

VERDICT = {"PASS": "[green]PASS[/]", "FAIL": "[red]FAIL[/]", "INCONCLUSIVE": "[yellow]INCONCLUSIVE[/]"}
PARTS = ("short", "medium", "long", "all")


def show_summary(
    run: RunFolder, summary: dict[str, Any] | None = None, console: Console | None = None
) -> dict[str, Any]:
    """Print a run's summary (default: as it lies in summary.json) and return it."""
    found: dict[str, Any] = summary or json.loads(run.summary.read_text())
    console = console or Console()
    for table in (_success(found), _gates(found)):
        if table.row_count:
            console.print(table)
    console.print(_release(found), highlight=False)
    tokens, rollouts = found["tokens"], found["rollouts"]
    console.print(
        f"{found['iterations']} iterations, {sum(rollouts.values()) - rollouts['unscorable']:,} rollouts, "
        f"{tokens['sampled']:,} tokens sampled, {tokens['trained']:,} trained, {sum(found['seconds'].values()):.0f} s "
        "in stages",
        highlight=False,
    )
    if found["quarantine"]:
        kept = ", ".join(f"{count} by {rule}" for rule, count in found["quarantine"].items())
        console.print(f"in quarantine: {kept} ({run.quarantine})", highlight=False)
    console.print(f"report: {run.report}\nnext: ratchet up, for the Prefect and MLflow UIs", highlight=False)
    return found


def _success(summary: dict[str, Any]) -> Table:
    how = summary["mode"] if summary["mode"] == "greedy" else f"sampled at temperature {summary['temperature']:g}"
    table = Table(title=f"verified success on held-out problems, {how}", title_justify="left", box=SIMPLE_HEAD)
    for column in ("horizon", "n", "before", "95% in", "after", "95% in", "change", "greedy"):
        table.add_column(column, justify="left" if column == "horizon" else "right", no_wrap=True)
    before, after = summary["success"]["before"], summary["success"]["after"]
    for part in PARTS:
        a, b = before.get(part), after.get(part)
        if (a and a["n"]) or (b and b["n"]):
            table.add_row(part, _n(a, b), *_figures(a), *_figures(b), _change(a, b), _greedy(summary, part))
    return table


def _n(a: dict[str, Any] | None, b: dict[str, Any] | None) -> str:
    return str((b or a or {"n": 0})["n"])


def _figures(part: dict[str, Any] | None) -> tuple[str, str]:
    if not part or part["rate"] is None:
        return "-", "-"
    low, high = part["interval"]
    return f"{part['rate']:.1%}", f"{100 * low:.0f} to {100 * high:.0f}"


def _change(a: dict[str, Any] | None, b: dict[str, Any] | None) -> str:
    if not a or not b or a["rate"] is None or b["rate"] is None:
        return "-"
    points = 100 * (b["rate"] - a["rate"])
    colour = "green" if points > 0 else "red"
    return f"[{colour}]{points:+.1f}[/]"


def _greedy(summary: dict[str, Any], part: str) -> str:
    found = [summary["success_greedy"][side].get(part) for side in ("before", "after")]
    return " → ".join("-" if not one or one["rate"] is None else f"{one['rate']:.0%}" for one in found)


def _gates(summary: dict[str, Any]) -> Table:
    table = Table(title="gates", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("gate", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what it saw")
    for gate in summary["gates"]:
        table.add_row(gate["name"], VERDICT[gate["verdict"]], escape(gate["reason"]))
    return table


def _release(summary: dict[str, Any]) -> str:
    release = summary["release"]
    if release is None:
        held = summary["held"]
        return f"[yellow]no release[/]: {held['name']}: {escape(held['reason'])}" if held else "no release"
    parts = ", ".join(
        f"{role} v{part['version']} ({part['digest'][:12]})" for role, part in release["components"].items()
    )
    verb = "[green]promoted to champion[/]" if release["promoted"] else f"[yellow]canary: {release['canary']}[/]"
    return f"release {release['version']}, {release['policy']}: {verb}; {parts}"
