"""Real traffic as live sessions: what the standing gateway's audit log says of a champion and its candidate.

audit rows -> rows of a session -> ended? -> LiveSession, in the order of their ends
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, get_args

import pandas as pd

from data_contracts.records import Horizon, Status
from tasks.canary.sessions import Arm, LiveSession

Row = dict[str, Any]
COLUMNS = (
    "kind", "ts", "session", "release", "stage", "digest", "status", "shadow", "prompt_tokens", "completion_tokens",
    "call_errors", "latency", "outcome", "metadata",
)  # fmt: skip
"""Those of the audit log that are read here."""

_OK = "ok"
_OF_CLIENT: dict[str, Status] = {"context_length_exceeded": "out_of_tokens"}
"""Statuses of a turn that is not answered, through nobody's failure. Any other but `ok` is the release's."""


class Pair(NamedTuple):
    """Names of the two releases, as the gateway gives them."""

    champion: str
    candidate: str


class Observed(NamedTuple):
    """Sessions that have ended, and when anything at all was last heard of either release."""

    sessions: list[LiveSession]
    last: datetime | None


def observe(audit: pd.DataFrame, pair: Pair, *, since: datetime, now: datetime, idle: timedelta) -> Observed:
    """The sessions of both releases that began at `since` or later, each by its arm.

    A session ends with its outcome's row, or `idle` after its last one. A session's copies in the shadow are a session
    of their own, which ends with it.
    """
    rows = _rows(audit, pair)
    begun: dict[tuple[str, bool], list[Row]] = {}
    for row in rows:
        begun.setdefault((row["session"], row["shadow"]), []).append(row)
    shadowed = {row["stage"] for row in rows if row["shadow"]}
    ended = []
    for (session, _), own in begun.items():
        end = _end(begun.get((session, False), own), now, idle)
        if own[0]["ts"] >= since and end is not None:
            arm: Arm = "candidate" if own[0]["release"] == pair.candidate else "champion"
            ended.append((end, session, _session(own, arm, by_call=own[0]["stage"] in shadowed)))
    ended.sort(key=lambda item: item[:2])
    return Observed([session for _, _, session in ended], max((row["ts"] for row in rows), default=None))


def _rows(audit: pd.DataFrame, pair: Pair) -> list[Row]:
    """What concerns the two releases, oldest first."""
    chosen = audit[audit["release"].isin(pair)]
    rows = chosen[[*COLUMNS]].astype(object).to_dict("records")
    return [{str(key): value for key, value in row.items()} | {"shadow": row["shadow"] is True} for row in rows]


def _end(rows: Sequence[Row], now: datetime, idle: timedelta) -> datetime | None:
    told = next((row["ts"] for row in rows if row["kind"] == "outcome"), None)
    end: datetime = told or rows[-1]["ts"] + idle
    return end if end <= now else None


def _session(rows: Sequence[Row], arm: Arm, *, by_call: bool) -> LiveSession:
    """`by_call`: errors of calls alone, since a shadow's calls are not run and nothing else is known of it."""
    turns = [row for row in rows if row["kind"] == "turn"]
    served = [row for row in turns if row["status"] == _OK]
    told = next((row for row in rows if row["kind"] == "outcome"), None)
    said: dict[str, Any] = json.loads(told["metadata"]) if told else {}
    malformed = _total(row["call_errors"] for row in served)
    failed = None if by_call else _number(said.get("tool_errors"), least=0.0)
    return LiveSession(
        session=rows[0]["session"],
        stage=int(rows[0]["stage"]),
        arm=arm,
        release=rows[0]["release"],
        digest=rows[0]["digest"],
        problem_id=_text(said.get("problem_id")),
        horizon=said["horizon"] if said.get("horizon") in get_args(Horizon) else None,
        status=_status(turns, said),
        shadow=rows[0]["shadow"],
        outcome=told["outcome"] if told and isinstance(told["outcome"], bool) else None,
        reward=_number(said.get("reward")),
        refused=said["refused"] if isinstance(said.get("refused"), bool) else None,
        cost=_number(said.get("cost"), least=0.0),
        turns=len(served),
        prompt_tokens=int(_total(row["prompt_tokens"] for row in served[:1])),
        tokens=int(_total(row["completion_tokens"] for row in served)),
        latency=_total(row["latency"] for row in served),
        tool_errors=int(malformed if failed is None else failed),
    )


def _status(turns: Sequence[Row], said: dict[str, Any]) -> Status:
    """How it ended: a last turn without an answer decides, then what the client said."""
    last = turns[-1]["status"] if turns else _OK
    if last != _OK:
        return _OF_CLIENT.get(last, "engine_error")
    status: Status = said["status"] if said.get("status") in get_args(Status) else "completed"
    return status


def _total(values: Iterable[object]) -> float:
    return sum((_number(value) or 0.0 for value in values), 0.0)


def _number(value: object, least: float = -sys.float_info.max) -> float | None:
    """A finite number as a client or the log gave it; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if least <= value <= sys.float_info.max else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
