"""One session turn by turn, tokens in, tokens out; does no I/O of its own.

request() -> engine -> take_completion() -> calls to run -> take_results() -> request() ... -> finish() -> Rollout

What ends a session: a call that is `done` or an answer that a `Listener` takes (completed), the problem's turns or
tokens, or a failure from outside.
What the model is shown is up to the context policy, which may also ask it something between two turns.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_contracts.errors import UserError
from data_contracts.records import Answer, Problem, Rollout, Sampling, Status, ToolCall, Trajectory, Turn
from tasks.rollout.calls import Answered, batched
from tasks.rollout.config import RolloutConfig
from tasks.rollout.context import Piece, context_policy, observation
from tasks.rollout.context.keep import Question
from tasks.rollout.conversation import ChatLike, Conversation
from tasks.rollout.engine import Completion, SampleRequest
from tasks.rollout.environments.base import Listener, Session
from tasks.rollout.segments import SegmentWriter
from tasks.rollout.toolcalls import ParsedTurn
from tasks.rollout.toolformats import FORMATS

CUT = "error: message too long, cut; nothing was run"


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
        config: RolloutConfig,
    ) -> None:
        self.job, self.session, self.name, self.policy_version = job, session, name, policy_version
        self.batched = batched(session)
        self._listener = session if isinstance(session, Listener) else None
        self._attempt = name
        self.status: Status | None = None
        self._detail, self._submitted = "", False
        self._chat, self._sampling, self._seed = chat, sampling, sampling.seed
        self._max_turn_tokens, self._left = config.max_turn_tokens, job.problem.limits.tokens
        self._numbered = config.max_staleness > 0
        self._format = FORMATS[config.tool_format]
        self._segments = SegmentWriter()
        self._turns: list[Turn] = []
        self._files = dict(session.files)
        self._malformed = self._tool_errors = 0
        self._started = time.perf_counter()
        self._policy = context_policy(config.context, session.messages(), chat)
        self._context = Conversation(chat, _tools(session, self._policy.tools()))
        self._context.show(self._policy.messages())
        self._prompt = list(self._context.ids)
        self._question: Question | None = None

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The record so far."""
        return tuple(self._turns)

    @property
    def origins(self) -> dict[str, int]:
        """Where the tokens of the next turn's context come from, see ORIGINS."""
        return self._policy.origins(len(self._context.ids), len(self._prompt))

    def request(self) -> SampleRequest:
        """The next turn, within what is left of the problem's token budget."""
        self._segments.prompt(self._context.ids, len(self._turns))
        most = self._question.tokens if self._question else self._max_turn_tokens
        return SampleRequest(
            session=self.name,
            policy_version=self.policy_version,
            token_ids=list(self._context.ids),
            max_tokens=min(most, self._left),
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

    def take_completion(self, completion: Completion) -> tuple[ToolCall, ...]:
        """Record a sampled turn; returns the calls to run. Then either `status` is set or `take_results` is due."""
        cut = completion.finish_reason == "length"
        self._segments.sampled(
            completion.token_ids,
            completion.logprobs,
            len(self._turns),
            completion.policy_version,
            completion.routing,
        )
        self._left -= len(completion.token_ids)
        shown, asked = self._context.text, len(self._context.ids)
        text = self._context.said(completion.token_ids)
        calls, errors = self._read(text, cut)
        self._malformed += len(errors)
        self._turns.append(self._turn(completion, text, calls, errors, (shown, asked)))
        self._policy.said(text, len(completion.token_ids))
        if cut and self._left <= 0:
            self.status = "out_of_tokens"
        return tuple(call for call in calls if not self._policy.owns(call))

    def _read(self, text: str, cut: bool) -> tuple[tuple[ToolCall, ...], tuple[str, ...]]:
        """The calls of a message, and an observation for each that is none."""
        if self._question:  # a summary runs nothing, whatever it says
            return (), ()
        if cut:  # not run, not even the calls it closed: more was to come
            return (), (CUT,)
        parsed = self._format.parse(text)
        errors = tuple(f"error: {error}" for error in parsed.errors)
        if self._answers(parsed):
            self.status, self._submitted = "completed", True
        elif not parsed.calls and not errors:
            errors = (self._format.no_call,)
        return parsed.calls, errors

    def _answers(self, parsed: ParsedTurn) -> bool:
        """Tell a session that listens what was said; whether it takes that as the answer."""
        calls = [call for call in parsed.calls if not self._policy.owns(call)]
        for_it = bool(calls) or not (parsed.calls or parsed.errors)
        return self._listener is not None and for_it and self._listener.hear(parsed.content, calls)

    def _turn(
        self,
        completion: Completion,
        text: str,
        calls: tuple[ToolCall, ...],
        errors: tuple[str, ...],
        context: tuple[str, int],
    ) -> Turn:
        shown, asked = context
        return Turn(
            index=len(self._turns),
            completion=text,
            completion_tokens=len(completion.token_ids),
            prompt_tokens=asked,
            finish_reason=completion.finish_reason,
            calls=calls,
            call_errors=errors,
            policy_version=completion.policy_version,
            policy_digest=completion.policy_digest,
            sample_seconds=completion.seconds,
            purpose="summary" if self._question else "work",
            segment=self._segments.index,
            cached_tokens=completion.cached_tokens,
            origins=self._policy.origins(asked, len(self._prompt)),
            prompt_kept=self._policy.keeps_prompt(shown),
        )

    def take_results(self, answers: Sequence[Answered] = ()) -> None:
        """What the calls of the last turn came back with, in order; ends the session or prepares the next turn."""
        if self._question:
            self._question = None
            self._policy.answered(self._format.parse(self._turns[-1].completion).content)
        elif self._observe(answers):
            self.status, self._submitted = "completed", True
        if self.status is None:
            self._prepare()

    def _observe(self, answers: Sequence[Answered]) -> bool:
        """Bring results into the record and the context; returns whether one ended the session."""
        turn = self._turns[-1]
        given = iter(zip(answers, self._policy.admit([answer.result.text for answer in answers]), strict=True))
        outcomes: list[Answered] = []
        pieces: list[Piece] = []
        for call in turn.calls:
            if self._policy.owns(call):
                answered = Answered(self._policy.call(call), 0.0)
                piece = observation(answered.result.text)
            else:
                answered, piece = next(given)
            outcomes.append(answered)
            pieces.append(piece)
            if answered.result.done:
                break
        pieces += [observation(error) for error in turn.call_errors]
        self._policy.observed(pieces)
        self._tool_errors += sum(answered.result.failed for answered in outcomes)
        self._turns[-1] = turn.model_copy(update=_seen(pieces, outcomes) | self._state())
        return any(answered.result.done for answered in outcomes)

    def _state(self) -> dict[str, Any]:
        """What the last turn did to the session: enough to restore it."""
        return {"changed": self._changed(), "visible": self.session.visible}

    def _changed(self) -> dict[str, str | None]:
        """The session's files that differ from those after the turn before."""
        before, now = self._files, self.session.files
        if before == now:
            return {}
        self._files = dict(now)
        return {path: now.get(path) for path in sorted(before.keys() | now.keys()) if before.get(path) != now.get(path)}

    def _prepare(self) -> None:
        """Make the next context, or end a session whose turns or tokens ran out."""
        worked = sum(turn.purpose == "work" for turn in self._turns)
        if worked >= self.job.problem.limits.turns:
            self.status = "out_of_turns"
        elif self._left <= 0:
            self.status = "out_of_tokens"
        else:
            self._context.show(self._policy.messages())
            self._question = self._policy.question(len(self._context.ids))
            if self._question:
                self._context.show(self._policy.messages())

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
        return Rollout(trajectory=trajectory, segments=self._segments.build(job.trajectory_id, numbered=self._numbered))


def _tools(session: Session, own: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The environment's tools and the context policy's."""
    tools = session.tools()
    taken = {tool["function"]["name"] for tool in tools} & {tool["function"]["name"] for tool in own}
    if taken:
        raise UserError(f"the environment has a tool {min(taken)!r} too: choose another rollout.context.policy.")
    return [*tools, *own]


def _seen(pieces: Sequence[Piece], outcomes: Sequence[Answered]) -> dict[str, Any]:
    """What a turn records of its observation, and of each call's part in it."""
    texts = [piece.message["content"] for piece in pieces]
    ends = [len("\n".join(texts[: place + 1])) for place in range(len(outcomes))]
    answers = [
        Answer(end=end, seconds=answered.seconds, failed=answered.result.failed)
        for end, answered in zip(ends, outcomes, strict=True)
    ]
    return {
        "observation": "\n".join(texts),
        "answers": tuple(answers),
        "tool_failed": any(answer.failed for answer in answers),
        "tool_seconds": sum(answer.seconds for answer in answers),
    }
