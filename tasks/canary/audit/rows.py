"""One row of the audit log, and the hash that ties it to the row before.

AuditRow -> stored row (a dict, one value a column) -> sha256(hash before, canonical JSON) -> hash
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from pydantic import Field

from data_contracts.records import Record

SCHEMA = pa.schema(
    [
        ("event", pa.string()),
        ("kind", pa.string()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("tenant", pa.string()),
        ("session", pa.string()),
        ("release", pa.string()),
        ("arm", pa.string()),
        ("stage", pa.int64()),
        ("shadow", pa.bool_()),
        ("trainable", pa.bool_()),
        ("digest", pa.string()),
        ("turn", pa.int64()),
        ("status", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("finish_reason", pa.string()),
        ("tool_calls", pa.list_(pa.string())),
        ("call_errors", pa.int64()),
        ("latency", pa.float64()),
        ("outcome", pa.bool_()),
        ("metadata", pa.string()),
        ("prompt", pa.string()),
        ("completion", pa.string()),
        ("seq", pa.int64()),
        ("hash", pa.string()),
    ]
)


class AuditRow(Record):
    """One turn as it was served, or (kind `outcome`) how a session ended. `latency` is in seconds.

    `prompt` and `completion` are JSON texts, after redaction: the messages that this turn added, and the answer with
    its calls. `shadow`: the candidate's answer to a copy of a request, which nobody saw. `trainable`: the tenant
    agreed that its sessions may be learned from.
    """

    kind: Literal["turn", "outcome"]
    tenant: str = "local"
    session: str
    release: str
    arm: str
    stage: int = 0
    shadow: bool = False
    trainable: bool = False
    digest: str
    turn: int
    status: str = "ok"
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    tool_calls: tuple[str, ...] = ()
    call_errors: int = 0
    latency: float | None = None
    outcome: bool | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    prompt: str | None = None
    completion: str | None = None


class Place(NamedTuple):
    """A row's place in the chain: the file's day, its number there, and its hash. Compares by day and number."""

    day: str
    seq: int
    hash: str


START = Place("", -1, "0" * 64)
"""Before the first row."""


def chained(row: AuditRow, ts: datetime, day: str, before: Place) -> dict[str, Any]:
    """The stored row that follows `before` in the file of `day`."""
    seq = before.seq + 1 if before.day == day else 0
    stored = row.model_dump(mode="python") | {"event": uuid.uuid4().hex, "ts": ts, "seq": seq}
    stored["metadata"] = json.dumps(row.metadata, sort_keys=True)
    return stored | {"hash": link(stored, before.hash)}


def link(stored: Mapping[str, Any], before: str) -> str:
    """A row's hash: it covers every column of the row and, by the hash before, every row before it."""
    return hashlib.sha256(f"{before}\n{_canonical(stored)}".encode()).hexdigest()


def line_of(stored: Mapping[str, Any]) -> str:
    """A stored row as a line of JSON."""
    return json.dumps(dict(stored) | {"ts": stored["ts"].isoformat()}, separators=(",", ":"))


def row_of(line: bytes) -> dict[str, Any]:
    """The stored row of a line. Raises ValueError, KeyError or TypeError for a line that holds none."""
    stored: dict[str, Any] = json.loads(line)
    return stored | {"ts": datetime.fromisoformat(stored["ts"])}


def _canonical(stored: Mapping[str, Any]) -> str:
    row = {name: stored[name] for name in SCHEMA.names if name != "hash"}
    row |= {"ts": stored["ts"].isoformat(), "tool_calls": list(stored["tool_calls"])}
    return json.dumps(row, sort_keys=True, separators=(",", ":"))
