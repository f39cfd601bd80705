"""Live sessions as a source of new problems: candidates, for a person to accept.

audit log + sessions named by drift -> those whose tenant opted in -> candidates.jsonl -> a person -> an ordinary pack

A session has no checks, so it is no problem yet: whoever accepts one writes them (`ratchet problems check` says what is
missing). Nothing reads this file but people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import Field

from data_contracts.records import Record
from data_contracts.store import read_jsonl, write_atomic


class Candidate(Record):
    """One live session that a problem could be made of."""

    session: str
    tenant: str
    release: str
    messages: list[dict[str, Any]] = Field(description="what the session began with, after redaction")
    outcome: bool | None = Field(default=None, description="as its owner told it")
    problem_id: str | None = Field(default=None, description="where the client named one")
    why: tuple[str, ...] = Field(min_length=1, description="drift checks that named it")


def live_candidates(audit: pd.DataFrame, why: Mapping[str, Sequence[str]], most: int) -> list[Candidate]:
    """The named sessions of tenants that opted in, those named most often and then the failed ones first."""
    rows = audit[audit["session"].isin(list(why))]
    if "trainable" not in rows or "prompt" not in rows:
        return []  # this gateway kept no words, and nobody's leave to use them
    opted = rows.groupby("session").filter(lambda events: bool(events["trainable"].fillna(False).all()))
    found = [_candidate(str(session), events, why[str(session)]) for session, events in opted.groupby("session")]
    kept = sorted((c for c in found if c), key=lambda c: (-len(c.why), c.outcome is not False, c.session))
    return kept[:most]


def write_candidates(path: Path, candidates: Sequence[Candidate]) -> None:
    """One a line; the file appears whole."""
    write_atomic(path, "".join(f"{candidate.model_dump_json()}\n" for candidate in candidates))


def read_candidates(path: Path) -> list[Candidate]:
    """Those in a file; none where there is no file."""
    return [Candidate.model_validate(row) for row in read_jsonl(path).rows]


def _candidate(session: str, events: pd.DataFrame, why: Sequence[str]) -> Candidate | None:
    """None for a session whose first turn was not kept."""
    turns = events[(events["kind"] == "turn") & events["prompt"].notna()].sort_values("turn")
    if turns.empty:
        return None
    told = events[events["kind"] == "outcome"].tail(1)
    outcome = told["outcome"].iloc[0] if len(told) else None
    return Candidate(
        session=session,
        tenant=str(turns["tenant"].iloc[0]),
        release=str(turns["release"].iloc[0]),
        messages=json.loads(turns["prompt"].iloc[0]),
        outcome=None if pd.isna(outcome) else bool(outcome),
        problem_id=json.loads(told["metadata"].iloc[0]).get("problem_id") if len(told) else None,
        why=tuple(why),
    )
