"""Sessions as the tables that drift checks compare: one row a session.

trajectories of the release's evaluation -> reference;  live sessions, or the audit log -> window

Columns: horizon, prompt_tokens, turns, tokens, tool_error_rate (errors a turn), success (NaN: not known).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd

from data_contracts.records import INFRASTRUCTURE, Trajectory
from tasks.canary.sessions import LiveSession, metric_value

COLUMNS = ("horizon", "prompt_tokens", "turns", "tokens", "tool_error_rate", "success")


def reference_table(trajectories: Sequence[Trajectory]) -> pd.DataFrame:
    """The scorable rollouts of an evaluation."""
    rows = [
        (
            t.horizon,
            len(t.prompt_ids),
            len(t.turns),
            t.sampled_tokens,
            (t.tool_errors + t.malformed_calls) / max(len(t.turns), 1),
            float(t.outcome or 0),
        )
        for t in trajectories
        if t.scorable
    ]
    return _table(rows)


def session_table(sessions: Sequence[LiveSession]) -> pd.DataFrame:
    """Live sessions that were served; those lost to the sandbox, the verifier or a closed gateway are left out."""
    rows = []
    for s in sessions:
        if s.status in INFRASTRUCTURE and s.status != "verifier_error":
            continue
        success = metric_value(s, "success")
        rate = s.tool_errors / max(s.turns, 1)
        known = np.nan if success is None else success
        rows.append((s.horizon, s.prompt_tokens, s.turns, s.tokens, rate, known))
    return _table(rows)


def audit_table(audit: pd.DataFrame, *, release: str | None = None) -> pd.DataFrame:
    """The sessions of an audit log (of one release), from their turns and, where told, their outcome's metadata.

    A session whose outcome was never told has no success; the horizon and the errors of tools are the metadata's.
    """
    chosen = audit if release is None else audit[audit["release"] == release]
    rows = []
    for _, events in chosen.groupby("session", sort=True):
        turns = events[(events["kind"] == "turn") & (events["status"] == "ok")].sort_values("turn")
        told = events[events["kind"] == "outcome"].tail(1)
        if turns.empty:
            continue
        metadata = json.loads(told["metadata"].iloc[0]) if len(told) else {}
        outcome = told["outcome"].iloc[0] if len(told) else pd.NA
        errors = metadata.get("tool_errors", int(turns["call_errors"].sum()))
        rows.append(
            (
                metadata.get("horizon"),
                int(turns["prompt_tokens"].iloc[0]),
                len(turns),
                int(turns["completion_tokens"].sum()),
                errors / len(turns),
                np.nan if pd.isna(outcome) else float(outcome),
            )
        )
    return _table(rows)


def _table(rows: Sequence[tuple[object, ...]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(COLUMNS))
