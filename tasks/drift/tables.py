"""Sessions as the tables that drift checks compare: one row a session, the same columns on both sides.

trajectories of the release's evaluation -> reference;  the gateway's audit log (or live sessions) -> window

A column that a side knows nothing of is there and empty (None, NaN): its check says so by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from data_contracts.records import Trajectory
from tasks.drift.text import symbol_share, word_variety

TERMS = ("process", "format", "cost")
"""Reward terms other than the outcome, which is the column `success`."""

COLUMNS = {
    "session": "id of the session",
    "horizon": "short, medium or long",
    "prompt": "text of the user's message that the session began with",
    "prompt_tokens": "length of the first prompt",
    "prompt_symbols": "characters of it that are neither letters nor blanks, as a share",
    "prompt_variety": "distinct words of it over all words",
    "tools_offered": "names of the tools that the client offered",
    "tools": "names of the tools that were called, in order",
    "turns": "model messages",
    "tokens": "sampled tokens",
    "tool_error_rate": "errors of calls, a turn",
    "truncated": "1 where a message was cut by length",
    "unserved": "1 where a turn was not answered",
    "success": "verified or told outcome, 1 or 0",
    **{f"reward_{term}": f"reward term {term!r}, before weights" for term in TERMS},
    "predicted": "the reward model's chance of success",
    "residual": "outcome less prediction",
    "disagreement": "1 where the prediction, taken at 0.5, and the outcome differ",
    "mismatch": "mean |log-probability under the trainer - under the engine| of its tokens, nats",
}
"""Columns of a table of sessions, and what they hold."""

Prompt = Callable[[Trajectory], str | None]
"""The text that a trajectory's user began with."""


def reference_table(
    trajectories: Sequence[Trajectory],
    prompt: Prompt = lambda _: None,
    predicted: Mapping[str, float] = MappingProxyType({}),
) -> pd.DataFrame:
    """The scorable rollouts of an evaluation; `predicted` is the reward model's chance of success by trajectory id."""
    return _table(
        [
            {
                "session": t.id,
                "horizon": t.horizon,
                "prompt": prompt(t),
                "prompt_tokens": len(t.prompt_ids),
                "tools": [call.name for turn in t.turns for call in turn.calls],
                "turns": len(t.turns),
                "tokens": t.sampled_tokens,
                "tool_error_rate": (t.tool_errors + t.malformed_calls) / max(len(t.turns), 1),
                "truncated": float(any(turn.finish_reason == "length" for turn in t.turns)),
                "unserved": 0.0,
                "success": float(bool(t.outcome)),
                "predicted": predicted.get(t.id),
                **{f"reward_{term}": t.rewards.get(term) for term in TERMS},
            }
            for t in trajectories
            if t.scorable
        ]
    )


def audit_table(audit: pd.DataFrame, *, release: str | None = None) -> pd.DataFrame:
    """The sessions of an audit log (of one release), from their turns and, where told, their outcome.

    Answers to copies of requests (`shadow`) are nobody's sessions. What only the client knows comes with the outcome's
    metadata: horizon, tool_errors, predicted, mismatch, rewards {term: value}, tools {names it offered}.
    """
    chosen = audit if release is None else audit[audit["release"] == release]
    if "shadow" in chosen:
        chosen = chosen[~chosen["shadow"].fillna(False).astype(bool)]
    rows = [_session(str(session), events) for session, events in chosen.groupby("session", sort=True)]
    return _table([row for row in rows if row])


def asked(messages: str | None) -> str | None:
    """The user's last message in the JSON text of a first turn's messages; None where none was kept."""
    kept = json.loads(messages) if messages else []
    texts = [message["content"] for message in kept if message["role"] == "user" and message["content"]]
    return str(texts[-1]).strip() if texts else None


def _session(session: str, events: pd.DataFrame) -> dict[str, Any]:
    """One session's row; empty where it has no turn (it began before the rows that were read)."""
    turns = events[events["kind"] == "turn"].sort_values("turn")
    if turns.empty:
        return {}
    told = events[events["kind"] == "outcome"].tail(1)
    metadata = json.loads(told["metadata"].iloc[0]) if len(told) else {}
    outcome = told["outcome"].iloc[0] if len(told) else None
    served, rewards = turns[turns["status"] == "ok"], metadata.get("rewards", {})
    row = {
        "session": session,
        "horizon": metadata.get("horizon"),
        "tools_offered": metadata.get("tools"),
        "unserved": float(len(served) < len(turns)),
        "success": None if pd.isna(outcome) else float(outcome),
        "predicted": metadata.get("predicted"),
        "mismatch": metadata.get("mismatch"),
        **{f"reward_{term}": rewards.get(term) for term in TERMS},
    }
    if served.empty:
        return row
    return row | {
        "prompt": asked(served["prompt"].iloc[0]) if "prompt" in served else None,
        "prompt_tokens": int(served["prompt_tokens"].iloc[0]),
        "tools": [name for names in served["tool_calls"] for name in names],
        "turns": len(served),
        "tokens": int(served["completion_tokens"].sum()),
        "tool_error_rate": metadata.get("tool_errors", int(served["call_errors"].sum())) / len(served),
        "truncated": float((served["finish_reason"] == "length").any()),
    }


def _table(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Rows as the table, with the columns that follow from others."""
    frame = pd.DataFrame([*rows], columns=list(COLUMNS)).astype({"horizon": object, "prompt": object})
    texts = frame["prompt"].dropna()
    predicted, success = (frame[name].astype("float64") for name in ("predicted", "success"))
    known = predicted.notna() & success.notna()
    return frame.assign(
        prompt_symbols=texts.map(symbol_share).reindex(frame.index),
        prompt_variety=texts.map(word_variety).reindex(frame.index),
        success=success,
        predicted=predicted,
        residual=success - predicted,
        disagreement=((predicted >= 0.5) != (success == 1.0)).astype("float64").where(known, np.nan),
    )
