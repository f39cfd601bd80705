"""One turn of a session: from what was asked to what was sampled, recorded and remembered.

request -> context ids -> EnginePump -> message -> audit row -> Answer
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from models.chat import Chat
from tasks.canary.conversation import Conversation, Exchange
from tasks.canary.gateway.ledger import Ledger, measured
from tasks.canary.gateway.metrics import Metrics
from tasks.canary.gateway.telling import Teller
from tasks.canary.gateway_config import GatewayConfig
from tasks.canary.serving import EnginePump, Heard
from tasks.canary.wire import ChatRequest, Message, WireError, assistant_message, completion_body
from tasks.canary.wire_text import TextRequest, text_body
from tasks.rollout.engine import Completion, ContextFull, EngineError, SampleRequest
from tasks.rollout.toolformats import ToolFormat

_LOG = logging.getLogger(__name__)


class Turn(NamedTuple):
    """What one turn asks for, and the messages it added to the session."""

    held: Conversation
    number: int
    said: list[Message]
    sample: SampleRequest


class Answer(NamedTuple):
    """A response's body; `turn` is None where an answer was given again."""

    body: dict[str, Any]
    turn: Turn | None


class Turns:
    """Answers turns. A session's lock is held meanwhile: it has one turn at a time."""

    def __init__(
        self, pump: EnginePump, chat: Chat, form: ToolFormat, ledger: Ledger, metrics: Metrics, config: GatewayConfig
    ) -> None:
        self.chat, self.form = chat, form
        self._pump, self._ledger, self._metrics, self._config = pump, ledger, metrics, config

    async def of_chat(
        self, held: Conversation, asked: ChatRequest, *, retried: bool, teller: Teller | None = None
    ) -> Answer:
        """The next message of a conversation; `teller` hears it while it is sampled."""
        messages = [message.plain() for message in asked.messages]
        if retried and held.repeats(messages) and held.answer is not None:
            if teller:
                teller.told(held.answer["choices"][0]["message"]["content"])
            return Answer(held.answer, None)  # the client lost our answer: the turn was sampled, and is not again
        tools = [] if asked.tool_choice == "none" else asked.tools
        prompt = held.context(messages, tools, self.chat)
        turn = self._turn(held, held.added(messages), prompt, asked, asked.limit)

        def message_of(completion: Completion) -> Message:
            message = self.message(completion, turn.number)
            return message if teller is None else message | {"content": teller.told(message["content"])}

        completion, message = await self._made(turn, message_of, teller.hear if teller else None)
        body = completion_body(held.session, held.turn, held.route.served.release, message, completion)
        held.commit(Exchange(messages, tools, prompt, completion, message, body), self.chat)
        return Answer(body, turn)

    async def of_text(self, held: Conversation, asked: TextRequest) -> Answer:
        """The continuation of a text, or of token ids."""
        prompt = asked.ids(self.chat)
        text = asked.prompt if isinstance(asked.prompt, str) else self.chat.decode(prompt)
        turn = self._turn(held, [{"role": "prompt", "content": text}], prompt, asked, asked.max_tokens)
        completion, _ = await self._made(turn, self._words)
        held.turn += 1
        id = f"cmpl-{held.session}-{turn.number}"
        return Answer(text_body(id, held.route.served.release, asked, prompt, completion, self.chat), turn)

    def message(self, completion: Completion, number: int) -> Message:
        """A completion as the assistant's message of turn `number`."""
        text = self.chat.decode(completion.token_ids)
        return assistant_message(text, number, self.form, cut=completion.finish_reason == "length")

    async def sampled(self, sample: SampleRequest, digest: str, hear: Heard | None = None) -> Completion:
        """The engine's answer, by the weights with that digest; its failures as HTTP errors."""
        try:
            future = self._pump.sample(sample, hear)
            completion = await asyncio.wait_for(asyncio.wrap_future(future), self._config.request_seconds)
        except TimeoutError as error:
            self._pump.close_session(sample.session)
            raise WireError(504, "timeout", f"no completion within {self._config.request_seconds:g} s") from error
        except ContextFull as error:
            raise WireError(400, "context_length_exceeded", str(error)) from error
        except EngineError as error:
            _LOG.error("session %s: %s", sample.session, error)
            status = 500 if self._pump.alive else 503
            raise WireError(status, "engine_error", str(error)) from error
        if completion.policy_digest != digest:
            raise WireError(500, "wrong_weights", f"{sample.policy_version} was not served by the weights it pins")
        return completion

    def _turn(
        self,
        held: Conversation,
        said: list[Message],
        prompt: list[int],
        asked: ChatRequest | TextRequest,
        limit: int | None,
    ) -> Turn:
        sample = SampleRequest(
            session=held.session,
            policy_version=held.route.served.release,
            token_ids=prompt,
            max_tokens=min(limit or self._config.max_tokens, self._config.max_context - len(prompt)),
            temperature=asked.temperature,
            top_p=asked.top_p,
            seed=_seed(held.session if asked.seed is None else str(asked.seed), held.turn),
            stop_ids=self.chat.stop_ids,
        )
        return Turn(held, held.turn, said, sample)

    async def _made(
        self, turn: Turn, message_of: Callable[[Completion], Message], hear: Heard | None = None
    ) -> tuple[Completion, Message]:
        """Sample a turn and record it, also when it failed."""
        started, held = time.monotonic(), turn.held
        try:
            completion = await self._within(turn.sample, held.route.served.digest, hear)
        except WireError as error:
            await self._ledger.turn(held, turn.said, time.monotonic() - started, status=error.code)
            raise
        message = message_of(completion)
        await self._ledger.turn(
            held, turn.said, time.monotonic() - started, completion=message, **measured(completion), **calls_of(message)
        )
        self._count(held, completion, message)
        return completion, message

    async def _within(self, sample: SampleRequest, digest: str, hear: Heard | None) -> Completion:
        if sample.max_tokens < 1:
            most = f"the prompt has {len(sample.token_ids)} tokens: at most {self._config.max_context - 1}"
            raise WireError(400, "context_length_exceeded", most)
        return await self.sampled(sample, digest, hear)

    def _count(self, held: Conversation, completion: Completion, message: Message) -> None:
        release, sampled = held.route.served.release, len(completion.token_ids)
        kinds = {"prompt": completion.prompt_tokens, "cached": completion.cached_tokens, "completion": sampled}
        for kind, count in kinds.items():
            self._metrics.tokens.labels(release, kind).inc(count)
        self._metrics.call_errors.labels(release).inc(len(message.get("call_errors", [])))
        held.tenant.charge(completion.prompt_tokens + sampled)

    def _words(self, completion: Completion) -> Message:
        return {"role": "assistant", "content": self.chat.decode(completion.token_ids)}


def calls_of(message: Message) -> dict[str, Any]:
    """The calls of a message, by column."""
    names = tuple(call["function"]["name"] for call in message.get("tool_calls", []))
    return {"tool_calls": names, "call_errors": len(message.get("call_errors", []))}


def _seed(start: str, turn: int) -> int:
    """A turn's own seed: an engine that has forgotten the session meanwhile must not draw the first turn's again."""
    return int.from_bytes(hashlib.sha256(f"seed:{start}:{turn}".encode()).digest()[:4])
