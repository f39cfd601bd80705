"""A session as the gateway remembers it: the exact token ids, so that nothing sampled is tokenised again.

messages of a request -> do they extend what is remembered? -> ids so far + observation ids, else a fresh rendering
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from models.chat import Chat
from tasks.canary.routing import Route, Served
from tasks.canary.tenants import Tenant
from tasks.canary.wire import ChatMessage, Message
from tasks.rollout.engine import Completion


class Exchange(NamedTuple):
    """One turn: what was asked, the ids it became, what was sampled, and how it was answered."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    prompt: list[int]
    completion: Completion
    message: Message
    answer: dict[str, Any]


class Conversation:
    """One session: its route, which never changes, and what was said so far, as messages and as ids."""

    def __init__(self, session: str, route: Route, tenant: Tenant, turn: int = 0) -> None:
        self.session, self.route, self.tenant = session, route, tenant
        self.turn = turn
        self.seen = time.monotonic()
        self.answer: dict[str, Any] | None = None
        self.lock = asyncio.Lock()
        self._messages: list[Message] = []
        self._tools: list[dict[str, Any]] = []
        self._ids: list[int] = []
        self._closed = True

    def added(self, messages: Sequence[Message]) -> list[Message]:
        """The messages that are not remembered yet; all of them where the history is another one."""
        known = len(self._messages)
        return list(messages[known:] if messages[:known] == self._messages else messages)

    def context(self, messages: Sequence[Message], tools: list[dict[str, Any]], chat: Chat) -> list[int]:
        """Ids of the whole conversation up to where the model speaks.

        When the messages are those remembered and then only what tools answered, the ids remembered come first, as
        they are. Otherwise (a new user message, an edited history) the conversation is rendered afresh.
        """
        known, new = messages[: len(self._messages)], messages[len(self._messages) :]
        extends = self._ids and known == self._messages and tools == self._tools and new
        if extends and all(message["role"] == "tool" for message in new):
            return self._ids + chat.observation([message["content"] for message in new], closed=self._closed)
        return chat.render_history([_rendered(message) for message in messages], tools)

    def repeats(self, messages: Sequence[Message]) -> bool:
        """Whether these are the messages that were last answered."""
        return self.answer is not None and list(messages) == self._messages[:-1]

    def commit(self, exchange: Exchange, chat: Chat) -> None:
        """Remember a turn that was sampled."""
        sampled = exchange.completion.token_ids
        self._messages = [*exchange.messages, ChatMessage.model_validate(exchange.message).plain()]
        self._tools = exchange.tools
        self._ids = [*exchange.prompt, *sampled]
        self._closed = bool(sampled) and sampled[-1] in chat.stop_ids
        self.answer = exchange.answer
        self.turn += 1


class Memory:
    """The conversations by session id; the longest idle is forgotten when there are too many."""

    def __init__(self, limit: int, forget: Callable[[str], None]) -> None:
        self._limit, self._forget = limit, forget
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._conversations)

    def find(self, session: str) -> Conversation | None:
        return self._conversations.get(session)

    def get(self, session: str, begin: Callable[[], Conversation]) -> Conversation:
        """The session's conversation; a new session begins here, once."""
        if session not in self._conversations:
            self._conversations[session] = begin()
        held = self._conversations[session]
        held.seen = time.monotonic()
        self._conversations.move_to_end(session)
        self._shrink()
        return held

    @property
    def releases(self) -> set[Served]:
        """What the sessions need."""
        return {held.route.served for held in self._conversations.values()}

    def drop(self, session: str) -> None:
        """Forget a session, here and in the engine."""
        if self._conversations.pop(session, None) is not None:
            self._forget(session)

    def clear(self) -> None:
        """Forget every session."""
        for name in list(self._conversations):
            self.drop(name)

    def expire(self, seconds: float) -> None:
        """Forget the sessions that have been idle for so long."""
        oldest = time.monotonic() - seconds
        for name in [n for n, held in self._conversations.items() if held.seen < oldest and not held.lock.locked()]:
            self.drop(name)

    def _shrink(self) -> None:
        if len(self._conversations) <= self._limit:
            return
        idle = [name for name, held in self._conversations.items() if not held.lock.locked()]
        for name in idle[: len(self._conversations) - self._limit]:
            self.drop(name)


def _rendered(message: Message) -> Message:
    """A message for the template: a call's arguments as an object where they are one, as templates expect."""
    calls = [call | {"function": call["function"] | _arguments(call)} for call in message.get("tool_calls", [])]
    return message | {"tool_calls": calls} if calls else message


def _arguments(call: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"arguments": json.loads(call["function"]["arguments"])}
    except json.JSONDecodeError:
        return {}
