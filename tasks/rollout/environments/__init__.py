"""Environments by name: what an agent acts on, through tools."""

from __future__ import annotations

from data_contracts.errors import UserError
from data_contracts.records import Problem
from tasks.rollout.environments.base import Environment, Session, ToolResult, Verified, VerifierError, checked
from tasks.rollout.environments.repair import Repair
from tasks.rollout.environments.verifiers import Verifiers
from tasks.rollout.environments.workspace import Workspace
from tasks.rollout.sandbox import WarmPool

ENVIRONMENTS: dict[str, Environment] = {"repair": Repair(), "verifiers": Verifiers(), "workspace": Workspace()}


def environment_of(problem: Problem) -> Environment:
    """The environment that a problem names; an unknown one is a UserError."""
    if problem.environment not in ENVIRONMENTS:
        known = ", ".join(sorted(ENVIRONMENTS))
        raise UserError(f"problem {problem.id}: no environment {problem.environment!r}: write one of {known}")
    return ENVIRONMENTS[problem.environment]


def open_session(problem: Problem, sandboxes: WarmPool) -> Session:
    """Start a session on a problem in the environment it names."""
    return environment_of(problem).open(problem, sandboxes)


__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "Session",
    "ToolResult",
    "Verified",
    "VerifierError",
    "checked",
    "environment_of",
    "open_session",
]
