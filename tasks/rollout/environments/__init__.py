"""Environments by name: what an agent acts on, through tools."""

from __future__ import annotations

from data_contracts.errors import UserError
from data_contracts.records import Problem
from tasks.rollout.environments.base import Session, ToolResult
from tasks.rollout.environments.repair import RepairSession
from tasks.rollout.sandbox import WarmPool

ENVIRONMENTS = {"repair": RepairSession}


def open_session(problem: Problem, sandboxes: WarmPool) -> Session:
    """Start a session on a problem in the environment it names."""
    if problem.environment not in ENVIRONMENTS:
        known = ", ".join(sorted(ENVIRONMENTS))
        raise UserError(f"problem {problem.id}: no environment {problem.environment!r}: write one of {known}")
    return ENVIRONMENTS[problem.environment](problem, sandboxes)


__all__ = ["ENVIRONMENTS", "Session", "ToolResult", "open_session"]
