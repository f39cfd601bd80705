"""A session as the gateway remembers it: the exact token ids, so that nothing sampled is tokenised again.

messages of a request -> do they extend what is remembered? -> ids so far + observation ids, else a fresh rendering
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from models.chat import Chat
from tasks.canary.routing import Route
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

    def __init__(self, session: str, route: Route) -> None:
        self.session, self.route = session, route
        self.turn = 0
        self.answer: dict[str, Any] | None = None
        self.lock = asyncio.Lock()
        self._messages: list[Message] = []
        self._tools: list[dict[str, Any]] = []
        self._ids: list[int] = []
        self._closed = True

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

    def get(self, session: str, route: Callable[[], Route]) -> Conversation:
        """The session's conversation; a new session is given its route here, once."""
        if session not in self._conversations:
            self._conversations[session] = Conversation(session, route())
        self._conversations.move_to_end(session)
        self._shrink()
        return self._conversations[session]

    def drop(self, session: str) -> None:
        """Forget a session, here and in the engine."""
        if self._conversations.pop(session, None) is not None:
            self._forget(session)

    def clear(self) -> None:
        """Forget every session."""
        for name in list(self._conversations):
            self.drop(name)

    def _shrink(self) -> None:
        idle = [name for name, held in self._conversations.items() if not held.lock.locked()]
        for name in idle[: max(0, len(self._conversations) - self._limit)]:
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
