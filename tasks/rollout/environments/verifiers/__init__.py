"""The environment `verifiers`: tasks of tasksets written for the package `verifiers` (0.4).

problem.origin (taskset, the task's data) -> the task's own tools, called in a fork -> transcript and what the tools
left -> another fork -> the task's own rewards -> a score from 0 to 1

Every session and every verdict has a fork of its own, of a process that itself runs nothing but imports.

This package's part is that of `verifiers`' simplest harness: a conversation with the task's tools, which a message
without a call ends. What the task needs beyond that (`fit`) is refused when it is imported. Its code is trusted as
your own is: it runs in processes apart, timed and limited in memory, and not in a sandbox.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from data_contracts.errors import UserError
from data_contracts.records import Origin, Problem
from tasks.rollout.environments.base import CheckSide, Failure, Trial, Verified, VerifierError, other_kind
from tasks.rollout.environments.verifiers.client import Host, HostError, TasksetError
from tasks.rollout.environments.verifiers.session import LEFT, TRANSCRIPT, PlayError, Said, VerifiersSession, begun
from tasks.rollout.sandbox import SandboxError, WarmPool

TURNS = "turns.json"
"""A reference solution: the agent's messages (a list of `Said`), to be played as a session."""
VALIDATE = "validate"
"""In place of a reference solution: the task's own `validate()` answers for it."""

_MISSING = "the package verifiers is not installed: pip install 'ratchetrl[verifiers]'"


class Verifiers:
    """Tasks of `verifiers` tasksets; the hidden checks say from which reward on a task counts as solved."""

    must_tell: tuple[CheckSide, ...] = ("hidden",)

    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}
        self._lock = threading.Lock()
        atexit.register(self.close)  # forks do not outlive us either way: this empties the folders

    def objection(self, problem: Problem) -> str:
        """The package is there, the problem has an origin, and what decides are rewards."""
        if missing := self.missing():
            return missing
        if problem.origin is None or TRANSCRIPT not in problem.files:
            return "origin: missing, or files without a transcript: use `ratchet problems import-verifiers`"
        if problem.visible:
            return "visible: a task of verifiers has no checks to show: leave it out"
        return next((fault for check in problem.hidden if (fault := other_kind(check, "reward"))), "")

    def missing(self) -> str:
        """What is not installed, with the remedy; empty where all is there."""
        return _MISSING if importlib.util.find_spec("verifiers") is None else ""

    def open(self, problem: Problem, sandboxes: WarmPool) -> VerifiersSession:
        if sandboxes.require_isolation:
            raise UserError(
                f"problem {problem.id}: a taskset's code runs outside of the sandbox: write rollout.require_isolation "
                "= false, or leave the problem out"
            )
        return self._session(problem)

    def verify(self, problem: Problem, files: Mapping[str, str], pool: Any) -> Verified:
        """The task's rewards for what was handed in; `pool` is not used, what is judged here is no program."""
        try:
            reward = self._reward(problem, files)
        except TimeoutError as error:
            raise VerifierError(str(error)) from error
        passed = sum(reward >= (check.reward or 0) for check in problem.hidden)
        return Verified(reward, passed, len(problem.hidden))

    def trial(self, problem: Problem, files: Mapping[str, str], pool: Any) -> Trial:
        """The same; of a reference solution, after it was played or by what the task's `validate` says of it."""
        try:
            if VALIDATE in files:
                return self._validated(problem)
            handed_in = self._played(problem, _turns(files[TURNS])) if TURNS in files else files
            reward = self._reward(problem, handed_in)
        except TimeoutError:
            return Trial("timeout", ())
        failing = [place for place, check in enumerate(problem.hidden) if reward < (check.reward or 0)]
        return Trial("exit", tuple(Failure("hidden", place, f"the reward is {reward:g}") for place in failing))

    def host(self, taskset: str) -> Host:
        """The process of a taskset."""
        with self._lock:
            if taskset not in self._hosts:
                self._hosts[taskset] = Host(taskset)
            return self._hosts[taskset]

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            while self._hosts:
                self._hosts.popitem()[1].close()

    def _session(self, problem: Problem) -> VerifiersSession:
        origin = _origin(problem)
        return VerifiersSession(problem, origin, self.host(origin.taskset).connect)

    def _played(self, problem: Problem, turns: Sequence[Said]) -> dict[str, str]:
        """What is handed in by an agent that says these messages."""
        session = self._session(problem)
        try:
            for turn in turns:
                session.hear(turn.content, turn.calls)
                for call in turn.calls:
                    session.call(call)
        except HostError as error:
            raise SandboxError(str(error)) from error
        except PlayError as error:
            raise VerifierError(f"the reference solution could not be played: {error}") from error
        return session.files

    def _reward(self, problem: Problem, files: Mapping[str, str]) -> float:
        left = json.loads(files[LEFT]) if LEFT in files else None
        reply = self._judged(problem, "score", transcript=json.loads(files[TRANSCRIPT]), left=left)
        reward = round(math.fsum(reply["rewards"].values()), 9)  # weights such as 0.7, 0.2 and 0.1 make 1
        if not (math.isfinite(reward) and 0 <= reward <= 1):
            raise VerifierError(
                f"the rewards sum to {reward:g}, which is no score from 0 to 1 ({reply['rewards']}): weigh them by "
                "task.rewards.NAME.weight in the taskset's settings, and import the problems again"
            )
        return reward

    def _validated(self, problem: Problem) -> Trial:
        valid = self._judged(problem, "validate")["valid"]
        places = () if valid else range(len(problem.hidden))
        return Trial("exit", tuple(Failure("hidden", place, f"validate() gives {valid}") for place in places))

    def _judged(self, problem: Problem, do: str, **fields: Any) -> Any:
        """Ask a fresh fork, in which the task was set up; it ends afterwards."""
        origin, limits = _origin(problem), problem.limits
        try:
            line = begun(origin, problem, self.host(origin.taskset).connect)
            return line.ask(do, limits.seconds, limits.memory_mb, **fields)
        except TasksetError as error:
            raise VerifierError(f"taskset {origin.taskset!r}: {error}") from error
        except HostError as error:
            raise SandboxError(str(error)) from error


def _turns(text: str) -> list[Said]:
    try:
        return _SAID.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise VerifierError(
            f'the reference solution is no list of messages: {where}: {first["msg"]}: write {{"content": ...}}, '
            '{"calls": [{"name": ..., "arguments": {...}}]}, or both in one'
        ) from error


_SAID = TypeAdapter(list[Said])


def _origin(problem: Problem) -> Origin:
    if problem.origin is None:
        raise VerifierError(f"problem {problem.id} has no origin: import it from its taskset")
    return problem.origin
