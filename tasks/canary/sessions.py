"""A live session's record, and the figure each metric takes from it.

LiveSession -> metric -> one number, or None where the session says nothing about it
"""

from __future__ import annotations

from collections.abc import Callable
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
    problem_id: str | None = Field(default=None, description="None on real traffic, unless the client said")
    horizon: Horizon | None = None
    status: Status
    shadow: bool = Field(default=False, description="the candidate's answers to copies of the champion's requests")
    outcome: bool | None = Field(default=None, description="hidden checks, or the user's; None where nobody could tell")
    reward: float | None = None
    refused: bool | None = Field(default=None, description="whether the agent refused; None where nobody told")
    cost: float | None = Field(default=None, ge=0, description="in whatever unit the client tells it")
    turns: int = Field(default=0, ge=0)
    prompt_tokens: int = Field(default=0, ge=0, description="length of the first prompt")
    tokens: int = Field(default=0, ge=0, description="sampled tokens, all turns together")
    latency: float = Field(default=0.0, ge=0, description="seconds spent waiting for completions, all turns together")
    tool_errors: int = Field(default=0, ge=0, description="malformed calls and calls that failed by the agent's fault")
    detail: str = ""


def _pace(session: LiveSession) -> float:
    return session.latency / session.turns


_FIGURES: dict[str, Callable[[LiveSession], float | bool | None]] = {
    "tokens": lambda session: session.tokens,
    "turns": lambda session: session.turns,
    "tool_errors": lambda session: session.tool_errors,
    "latency": _pace,
    "latency_p95": _pace,
    "reward": lambda session: session.reward,
    "refusals": lambda session: session.refused,
    "cost": lambda session: session.cost,
}
OF_SERVED: frozenset[str] = frozenset(_FIGURES)
"""Metrics that only a session which was served has."""

_OF_WHOLE: frozenset[str] = frozenset({"tokens", "turns", "latency", "latency_p95"})
"""Not of a shadow's: how long its session becomes is the champion's doing, and it reads each prompt without a cache."""


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
        return _success(session, lost)
    if lost or not session.turns:
        return None
    if metric not in _FIGURES or (session.shadow and metric in _OF_WHOLE):
        return None
    value = _FIGURES[metric](session)
    return None if value is None else float(value)


def _success(session: LiveSession, lost: bool) -> float | None:
    if session.shadow:
        return None  # nobody saw it, so nobody could judge it
    return 0.0 if lost else None if session.outcome is None else float(session.outcome)
