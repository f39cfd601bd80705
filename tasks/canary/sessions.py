"""A live session's record, and the figure each metric takes from it.

LiveSession -> metric -> one number, or None where the session says nothing about it
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from data_contracts.records import Horizon, Record, Status

Arm = Literal["champion", "candidate"]
ARMS: tuple[Arm, ...] = ("champion", "candidate")

UNATTRIBUTABLE: frozenset[str] = frozenset({"tool_error", "sandbox_error", "verifier_error", "cancelled"})
"""Endings that no release is to blame for. `engine_error` is not one: the release that was asked did not answer."""


class LiveSession(Record):
    """One session that went through the gateway, start to verified outcome."""

    session: str
    stage: int = Field(default=0, ge=0, description="the canary's stage when the session was given its arm")
    arm: Arm
    release: str
    digest: str
    problem_id: str
    horizon: Horizon
    status: Status
    outcome: bool | None = Field(default=None, description="hidden checks; None where they could not be run")
    turns: int = Field(default=0, ge=0)
    prompt_tokens: int = Field(default=0, ge=0, description="length of the first prompt")
    tokens: int = Field(default=0, ge=0, description="sampled tokens, all turns together")
    latency: float = Field(default=0.0, ge=0, description="seconds spent waiting for completions, all turns together")
    tool_errors: int = Field(default=0, ge=0, description="malformed calls and calls that failed by the agent's fault")
    detail: str = ""


def metric_value(session: LiveSession, metric: str) -> float | None:
    """One session's figure, or None.

    A session that the release failed to serve is a lost one to its user: `errors` 1, `success` 0. One that was lost to
    the sandbox or the verifier says nothing about either release.
    """
    if session.status in UNATTRIBUTABLE:
        return None
    lost = session.status == "engine_error"
    if metric == "errors":
        return float(lost)
    if metric == "success":
        return 0.0 if lost else None if session.outcome is None else float(session.outcome)
    if lost or not session.turns:
        return None
    figures = {
        "tool_errors": float(session.tool_errors),
        "latency": session.latency / session.turns,
        "tokens": float(session.tokens),
    }
    return figures.get(metric)
