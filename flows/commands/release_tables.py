"""Releases, one release and a difference, printed for a person.

facts -> rich tables
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Facts = Mapping[str, Any]


def show_releases(name: str, releases: Sequence[Facts], console: Console | None = None) -> None:
    """One line a release, the newest last."""
    table = Table("release", "policy", "run", "evidence", "standing", "last move", title=f"releases of {name}")
    for row in releases:
        move = row["last_move"]
        told = f"{_when(move['at'])} {_kind(move)} by {move['who']}: {move['why']}" if move else ""
        gates = ", ".join(f"{gate} {verdict}" for gate, verdict in row.get("evidence", {}).items())
        standing = "; ".join([*row["standing"], *([row["damaged"]] if "damaged" in row else [])])
        cells = (str(row["version"]), row.get("policy", "?"), row.get("run", "?"), gates, standing, told)
        table.add_row(*map(escape, cells))
    (console or Console()).print(table)


def show_release(found: Facts, console: Console | None = None) -> None:
    """What it pins, what it rests on, what happened to it."""
    console = console or Console()
    standing = "; ".join(found["standing"]) or "published"
    console.print(f"[bold]release {found['version']}[/] of {found['name']}: {escape(standing)}", highlight=False)
    console.print(
        f"{found['policy_version']} of {found['run_id']}, {_when(found['created'])}, code {found['code_revision']}",
        highlight=False,
    )
    parts = Table("component", "version", "digest", "files", "stored", title="pinned")
    for role, part in found["components"].items():
        parts.add_row(role, str(part["version"]), part["digest"], str(part["files"]), part["path"] or part["stored"])
    if found["reference"]:
        parts.add_row("reference", "", found["reference"]["digest"], "1", "copied")
    for kind in ("datasets", "contract_versions"):
        for name, digest in found[kind].items():
            parts.add_row(f"{kind}: {name}", "", digest, "", "")
    console.print(parts)
    evidence = Table("gate", "verdict", "reason", title="evidence")
    for gate in found["evidence"]:
        evidence.add_row(*map(escape, (gate["name"], gate["verdict"], gate["reason"])))
    history = Table("when", "what", "who", "why", "evidence", title="history")
    for move in found["history"]:
        gates = ", ".join(gate["name"] for gate in move["evidence"])
        what = f"{_kind(move)} {move['from_version'] or '-'} -> {move['to_version'] or '-'} ({move['state']})"
        history.add_row(*map(escape, (_when(move["at"]), what, move["who"], move["why"], gates)))
    for table in (evidence, history):
        if table.row_count:
            console.print(table)


def show_difference(
    a: int, b: int, found: Mapping[str, Mapping[str, Sequence[Any]]], console: Console | None = None
) -> None:
    """Key by key."""
    table = Table("", "key", f"release {a}", f"release {b}")
    for section, changes in found.items():
        for number, (key, (left, right)) in enumerate(changes.items()):
            table.add_row(*map(escape, (section if number == 0 else "", key, _value(left), _value(right))))
    (console or Console()).print(table if table.row_count else f"releases {a} and {b} pin the same")


def _kind(move: Facts) -> str:
    return f"{move['kind']} (forced)" if move["forced"] else str(move["kind"])


def _when(at: str) -> str:
    return at[:16].replace("T", " ")


def _value(value: Any) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
