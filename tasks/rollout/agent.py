"""One session turn by turn, tokens in, tokens out; does no I/O of its own.

request() -> engine -> take_completion() -> calls to run -> take_results() -> request() ... -> finish() -> Rollout

What ends a session: a call that is `done` (completed), the problem's turns or tokens, or a failure from outside.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from data_contracts.records import Problem, Rollout, Sampling, Status, ToolCall, Trajectory, Turn
from tasks.rollout.engine import Completion, SampleRequest
from tasks.rollout.environments.base import Session, ToolResult
from tasks.rollout.segments import SegmentWriter
from tasks.rollout.toolcalls import parse_turn

NO_CALL = "error: no tool call: answer with <tool_call>"
CUT = "error: message too long, cut; nothing was run"


class ChatLike(Protocol):
    """What the agent needs of `models.chat.Chat`."""

    @property
    def stop_ids(self) -> frozenset[int]: ...

    def prompt(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> list[int]: ...

    def observation(self, texts: Sequence[str], *, closed: bool) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Job:
    """One rollout to make: the `rollout_index`-th attempt at `problem` in `iteration` of `run_id`."""

    problem: Problem
    group_id: str
    rollout_index: int
    seed: int
    iteration: int
    run_id: str

    @property
    def trajectory_id(self) -> str:
        return f"{self.run_id}/{self.iteration:05d}/{self.problem.id}/{self.rollout_index}"


class Agent:
    """One attempt. `name` is the session's name in the engine; it differs from attempt to attempt.

    `policy_version` is what its next turn is sampled under.
    """

    def __init__(
        self,
        job: Job,
        session: Session,
        chat: ChatLike,
        *,
        name: str,
        policy_version: str,
        sampling: Sampling,
        max_turn_tokens: int,
    ) -> None:
        self.job, self.session, self.name, self.policy_version = job, session, name, policy_version
        self._attempt = name
        self.status: Status | None = None
        self._detail, self._submitted = "", False
        self._chat, self._sampling, self._seed = chat, sampling, sampling.seed
        self._max_turn_tokens, self._left = max_turn_tokens, job.problem.limits.tokens
        self._segments = SegmentWriter()
        self._turns: list[Turn] = []
        self._malformed = self._tool_errors = 0
        self._closed = True
        self._started = time.perf_counter()
        self._context = chat.prompt(session.messages(), session.tools())
        self._prompt = list(self._context)

    def request(self) -> SampleRequest:
        """The next turn, within what is left of the problem's token budget."""
        self._segments.prompt(self._context, len(self._turns))
        return SampleRequest(
            session=self.name,
            policy_version=self.policy_version,
            token_ids=list(self._context),
            max_tokens=min(self._max_turn_tokens, self._left),
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            seed=self._seed,
            stop_ids=self._chat.stop_ids,
        )

    def move_to(self, version: str) -> None:
        """Sample the turns from now on under another policy version, within what is left of the budget.

        The engine sees a session of its own: with a new name, and noise that does not repeat what was drawn before.
        """
        self.policy_version, self.name = version, f"{self._attempt}@{version}"
        self._seed = int.from_bytes(hashlib.sha256(f"{self._sampling.seed}/{version}".encode()).digest()[:8]) >> 1

    def rewrite_context(self, token_ids: Sequence[int]) -> None:
        """Sample the next turn from these tokens instead; if they do not extend the last ones, a segment begins."""
        self._context = list(token_ids)

    def take_completion(self, completion: Completion) -> tuple[ToolCall, ...]:
        """Record a sampled turn; returns the calls to run. Then either `status` is set or `take_results` is due."""
        index, cut = len(self._turns), completion.finish_reason == "length"
        self._segments.sampled(completion.token_ids, completion.logprobs, index, completion.policy_version)
        self._context = [*self._context, *completion.token_ids]
        self._left -= len(completion.token_ids)
        self._closed = not cut
        text = self._chat.decode(completion.token_ids)
        parsed = parse_turn(text)
        # A message that was cut is not run, not even the calls it closed: more was to come.
        calls = () if cut else parsed.calls
        errors = (CUT,) if cut else tuple(f"error: {error}" for error in parsed.errors)
        if not calls and not errors:
            errors = (NO_CALL,)
        self._malformed += len(errors)
        self._turns.append(
            Turn(
                index=index,
                completion=text,
                completion_tokens=len(completion.token_ids),
                prompt_tokens=completion.prompt_tokens,
                finish_reason=completion.finish_reason,
                calls=calls,
                call_errors=errors,
                policy_version=completion.policy_version,
                policy_digest=completion.policy_digest,
                sample_seconds=completion.seconds,
            )
        )
        if cut and self._left <= 0:
            self.status = "out_of_tokens"
        return calls

    def take_results(self, results: Sequence[ToolResult], seconds: float = 0.0) -> None:
        """What the calls of the last turn came back with, in order; ends the session or prepares the next turn."""
        turn = self._turns[-1]
        texts = [result.text for result in results] + list(turn.call_errors)
        failed = sum(result.failed for result in results)
        self._tool_errors += failed
        changes = {"observation": "\n".join(texts), "tool_failed": failed > 0, "tool_seconds": seconds}
        self._turns[-1] = turn.model_copy(update=changes)
        limits = self.job.problem.limits
        if any(result.done for result in results):
            self.status, self._submitted = "completed", True
        elif len(self._turns) >= limits.turns:
            self.status = "out_of_turns"
        elif self._left <= 0:
            self.status = "out_of_tokens"
        else:
            self._context = [*self._context, *self._chat.observation(texts, closed=self._closed)]

    def end(self, status: Status, detail: str) -> None:
        """End the session from outside."""
        self.status, self._detail = status, detail

    def finish(self) -> Rollout:
        """The record of an ended session. The verified outcome is not known here."""
        if self.status is None:
            raise RuntimeError(f"rollout {self.job.trajectory_id} has not ended")
        job, passed_total = self.job, self.session.visible
        trajectory = Trajectory(
            id=job.trajectory_id,
            run_id=job.run_id,
            iteration=job.iteration,
            problem_id=job.problem.id,
            horizon=job.problem.horizon,
            group_id=job.group_id,
            rollout_index=job.rollout_index,
            policy_version=self._turns[-1].policy_version if self._turns else self.policy_version,
            policy_digest=self._turns[-1].policy_digest if self._turns else "",
            status=self.status,
            detail=self._detail,
            sampling=self._sampling,
            turns=tuple(self._turns),
            prompt_ids=self._prompt,
            sampled_tokens=job.problem.limits.tokens - self._left,
            context_tokens=len(self._segments.context),
            malformed_calls=self._malformed,
            tool_errors=self._tool_errors,
            submitted=self._submitted,
            files=dict(self.session.files),
            visible_passed=passed_total[0] if passed_total else None,
            visible_total=passed_total[1] if passed_total else 0,
            seconds=time.perf_counter() - self._started,
        )
        return Rollout(trajectory=trajectory, segments=self._segments.build(job.trajectory_id))


def run_calls(session: Session, calls: Sequence[ToolCall]) -> tuple[list[ToolResult], float]:
    """Run calls one after another until one is done; returns what came back and the seconds it took."""
    start, results = time.perf_counter(), []
    for call in calls:
        results.append(session.call(call))
        if results[-1].done:
            break
    return results, time.perf_counter() - start
