"""A turn told while it is sampled: server-sent events in OpenAI's form.

tokens so far -> text that is settled -> content chunks ... the turn is recorded -> the rest, calls, usage, [DONE]

Calls and thinking are told at the end, whole: until its last tag a call is not known to be one. An engine that shows no
tokens before the end (vLLM) has its turn told in one piece; the header `x-ratchet-stream` says which: tokens or turn.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from models.chat import Chat
from tasks.canary.wire import WireError
from tasks.rollout.toolformats import ToolFormat


class Teller:
    """Takes in tokens from the pump's thread, gives out text on the event loop; `pieces` ends with None."""

    def __init__(self, chat: Chat, form: ToolFormat) -> None:
        self._chat, self._form = chat, form
        self._loop = asyncio.get_running_loop()
        self._said = ""
        self.pieces: asyncio.Queue[str | None] = asyncio.Queue()

    def hear(self, token_ids: Sequence[int]) -> None:
        """The turn's tokens so far. Called by the pump."""
        self._loop.call_soon_threadsafe(self._take, token_ids)

    def told(self, content: str) -> str:
        """The message's content: what has been told stands, the rest follows it."""
        content = content if content.startswith(self._said) else self._said
        self._say(content)
        return content

    def _take(self, token_ids: Sequence[int]) -> None:
        text = self._chat.decode(token_ids).rstrip("\ufffd")  # a character of which bytes are still to come
        settled = text[: self._form.settled(text)]
        if settled.startswith(self._said):
            self._say(settled)

    def _say(self, content: str) -> None:
        if len(content) > len(self._said):
            self.pieces.put_nowait(content[len(self._said) :])
            self._said = content


async def events(
    pieces: AsyncIterator[str], head: dict[str, Any], turn: asyncio.Task[Any], *, usage: bool
) -> AsyncIterator[bytes]:
    """The events of a turn: `head` is what all chunks share, `turn` gives the whole answer."""
    yield _event(head | _choice({"role": "assistant", "content": ""}))
    async for piece in pieces:
        yield _event(head | _choice({"content": piece}))
    try:
        body = (await asyncio.shield(turn)).body
    except WireError as error:
        yield _event(error.body())
        return
    choice = body["choices"][0]
    if calls := choice["message"].get("tool_calls"):
        yield _event(head | _choice({"tool_calls": [{"index": n} | call for n, call in enumerate(calls)]}))
    yield _event(head | _choice({}, choice["finish_reason"]))
    if usage:
        yield _event(head | {"choices": [], "usage": body["usage"]})
    yield b"data: [DONE]\n\n"


def _choice(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}]}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
