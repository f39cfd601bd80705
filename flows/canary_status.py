"""How `ratchet canary status` looks.

StandingStatus -> a line, a table of metrics with their intervals, what it waits for
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from data_contracts.gates import Gate
from tasks.canary.standing_status import StandingStatus

_WAITS = {
    "sessions": "more sessions",
    "bake": "the bake of this stage to end",
    "evidence": "evidence",
    "approval": "a person: `ratchet canary approve`, or the form in the Prefect UI",
    "traffic": "traffic to come back: nothing moves meanwhile",
}


def show_canary(status: StandingStatus, console: Console | None = None) -> None:
    """Print a canary for a person."""
    console = console or Console()
    console.print(f"[bold]{status.id}[/] of {status.name}: {status.in_words()}", highlight=False)
    table = Table("metric", "verdict", "champion", "candidate", "improvement", "limit", "sessions")
    for gate in status.gates:
        table.add_row(*_cells(gate))
    if table.row_count:
        console.print(table)
    if status.ending is None and status.waits_for is not None:
        console.print(f"waits for {_WAITS[status.waits_for]}", highlight=False)
    if status.ending is None and status.bake_left:
        console.print(f"{status.bake_left:.0f} s of this stage's bake are left", highlight=False)
    console.print(f"[dim]began {status.began}, last looked at {status.looked or 'never'}", highlight=False)


def _cells(gate: Gate) -> tuple[str, ...]:
    figures = gate.evidence
    interval = "not known" if figures["lower"] is None else _interval(figures["estimate"], figures["lower"], gate)
    counts = f"{figures['n_champion']} and {figures['n_candidate']}"
    arms = (_figure(figures["champion"]), _figure(figures["candidate"]))
    return (gate.name.removeprefix("canary_"), str(gate.verdict), *arms, interval, _figure(figures["limit"]), counts)


def _interval(estimate: object, lower: object, gate: Gate) -> str:
    return f"{_figure(estimate)} in [{_figure(lower)}, {_figure(gate.evidence['upper'])}]"


def _figure(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else ""
