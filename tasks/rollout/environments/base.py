"""The protocol of an environment: what its problems look like, what an agent may do, what its work is worth.

problem -> objection ("" where sound) -> open -> Session: tools, calls, files -> handed in -> verify -> Verified

An environment is one class: `Environment` answers for all problems that name it, a `Session` is one agent's hold on
one problem. Adding one is a module here and a line in `environments/__init__.py`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from data_contracts.records import Check, Problem, ToolCall
from tasks.rollout.sandbox import Ended, WarmPool

CheckSide = Literal["visible", "hidden"]
CheckKind = Literal["code", "command", "reward"]
JUDGED_BY: dict[CheckKind, str] = {"code": "repair", "command": "workspace", "reward": "verifiers"}
"""The environment that checks of a kind are for."""


class VerifierError(RuntimeError):
    """Verification itself failed; this says nothing about the work."""


class ToolResult(NamedTuple):
    """What a tool call came back with. `failed`: the agent's own mistake; `done`: the session ends."""

    text: str
    failed: bool = False
    done: bool = False


class Snapshot(NamedTuple):
    """A session's state as plain data: enough to go on from there, in another session on the same problem."""

    files: dict[str, str]
    visible: tuple[int, int] | None


class Verified(NamedTuple):
    """What handed-in work is worth: `score` in [0, 1]; the outcome is success where all of `total` checks passed."""

    score: float
    passed: int
    total: int


class Failure(NamedTuple):
    """A check that failed: on which side, its place there from 0, and why."""

    side: CheckSide
    place: int
    message: str


class Trial(NamedTuple):
    """All checks of a problem on some files, visible and hidden; `ended` as in `SandboxResult`."""

    ended: Ended
    failures: tuple[Failure, ...]


class Session(Protocol):
    """One agent's hold on one problem. `call` blocks and may run in a thread, one call at a time."""

    files: dict[str, str]
    """What is handed in when the session ends, submitted or not."""
    visible: tuple[int, int] | None
    """(passed, total) of the visible checks when they last ran."""

    def messages(self) -> list[dict[str, Any]]: ...

    def tools(self) -> list[dict[str, Any]]: ...

    def call(self, call: ToolCall) -> ToolResult: ...


@runtime_checkable
class Resumable(Session, Protocol):
    """A session whose state can be kept and put back, for example to sample a decision again."""

    def snapshot(self) -> Snapshot: ...

    def restore(self, snapshot: Snapshot) -> None: ...


@runtime_checkable
class Listener(Session, Protocol):
    """A session that hears every message of the agent's, and may take one without a call as the answer.

    What it hears are messages that were read without fault: not those cut by length, nor those with a broken call only.
    """

    def hear(self, content: str, calls: Sequence[ToolCall]) -> bool:
        """Note a message before its calls are run; whether it ends the session. Does not block."""
        ...


@runtime_checkable
class Batched(Session, Protocol):
    """A session whose calls are cheaper in one go with those of others: of sessions with an equal `batch`."""

    @property
    def batch(self) -> Hashable: ...

    def call_together(self, calls: Sequence[tuple[Session, ToolCall]]) -> Sequence[ToolResult]:
        """Answer one call each of different sessions of this batch, in their order; what it raises, all of them had."""
        ...


class Environment(Protocol):
    """A kind of problem. Its methods are called from many threads at once, so it holds no state of a session."""

    must_tell: tuple[CheckSide, ...]
    """The sides that each need a check which the untouched problem fails, for intake to admit it."""

    def objection(self, problem: Problem) -> str:
        """What is wrong with the problem's form, as a sentence with the remedy; empty where it is sound."""
        ...

    def open(self, problem: Problem, sandboxes: WarmPool) -> Session:
        """A fresh session; what the agent runs runs in `sandboxes`."""
        ...

    def verify(self, problem: Problem, files: Mapping[str, str], pool: Any) -> Verified:
        """Judge what was handed in, where no agent ever was; raises SandboxError and VerifierError."""
        ...

    def trial(self, problem: Problem, files: Mapping[str, str], pool: Any) -> Trial:
        """Run every check on the files as intake does; raises SandboxError and VerifierError."""
        ...


class FileSession:
    """The part that sessions over text files share: the files live here, and their state is a copy of them."""

    def __init__(self, problem: Problem, sandboxes: WarmPool) -> None:
        self.problem = problem
        self.files = dict(problem.files)
        self.visible: tuple[int, int] | None = None
        self._sandboxes = sandboxes

    def messages(self) -> list[dict[str, Any]]:
        """The conversation's start: the problem's prompt."""
        return [{"role": "user", "content": self.problem.prompt}]

    def snapshot(self) -> Snapshot:
        """The files and what the visible checks said of them."""
        return Snapshot(dict(self.files), self.visible)

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot's state back; the snapshot stays as it is."""
        self.files, self.visible = dict(snapshot.files), snapshot.visible


def other_kind(check: Check, kind: CheckKind) -> str:
    """What is wrong with a check that is of another kind, with the remedy; empty where it is of this one."""
    given: CheckKind = "code" if check.code else "command" if check.command else "reward"
    if given == kind:
        return ""
    return f"check {check.name!r} has {_A[given]}: give `{kind}`, or write environment = {JUDGED_BY[given]!r}"


_A: dict[CheckKind, str] = {"code": "code", "command": "a command", "reward": "a reward"}


def checked(verified: Verified) -> Verified:
    """The same, where it can be believed: a score that is not finite or not in [0, 1] raises VerifierError."""
    if not (math.isfinite(verified.score) and 0 <= verified.score <= 1 and 0 <= verified.passed <= verified.total != 0):
        raise VerifierError(f"the environment's verdict is no score from 0 to 1: {verified}")
    return verified
