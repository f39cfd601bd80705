"""The policy `keep`, and what every other policy builds on: all that was said and observed stays.

start messages -> said(), observed() -> messages -> (question() -> answered()) -> messages
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from data_contracts.records import ToolCall
from tasks.rollout.context.config import ContextConfig
from tasks.rollout.conversation import ChatLike, Message
from tasks.rollout.environments.base import ToolResult


class Piece(NamedTuple):
    """A message of the context; how many of its tokens the model sampled, and how many the policy put there."""

    message: Message
    own: int = 0
    inserted: int = 0


class Question(NamedTuple):
    """What the policy asks the model between two turns, and how many tokens the answer may have."""

    text: str
    tokens: int


class Keep:
    """One session's context. Subclasses change what becomes of results, and when the context is written anew."""

    def __init__(self, config: ContextConfig, start: Sequence[Message], chat: ChatLike) -> None:
        self.config, self.chat = config, chat
        self.start = [Piece(dict(message)) for message in start]
        self.pieces = list(self.start)

    def tools(self) -> list[dict[str, Any]]:
        """JSON schemas of the policy's own tools, which the agent is offered beside the environment's."""
        return []

    def owns(self, call: ToolCall) -> bool:
        """Whether a call is for one of the policy's own tools."""
        return any(tool["function"]["name"] == call.name for tool in self.tools())

    def call(self, call: ToolCall) -> ToolResult:
        """Answer a call of one of the policy's own tools; a wrong one comes back as an error observation."""
        raise NotImplementedError(f"{type(self).__name__} has no tools")

    def said(self, text: str, tokens: int) -> None:
        """The model's message, as it was sampled."""
        self.pieces.append(Piece({"role": "assistant", "content": text}, own=tokens))

    def observed(self, pieces: Sequence[Piece]) -> None:
        """What the last message came back with, one piece a call or error."""
        self.pieces += pieces

    def admit(self, texts: Sequence[str]) -> list[Piece]:
        """What the context gets of the environment's results of one turn, one piece a result."""
        return [observation(text) for text in texts]

    def messages(self) -> list[Message]:
        """What the model is shown."""
        return [piece.message for piece in self.shown()]

    def shown(self) -> list[Piece]:
        """The pieces that the model is shown, in order."""
        return self.pieces

    def question(self, context_tokens: int) -> Question | None:
        """What to ask the model before its next turn, now that the context has this many tokens."""
        return None

    def answered(self, text: str) -> None:
        """The model's answer to `question`."""
        raise NotImplementedError(f"{type(self).__name__} asks nothing")

    def keeps_prompt(self, text: str) -> bool:
        """Whether a rendered context holds the prompt, the task and all its constraints, word for word."""
        # Templates may trim a message.
        return all(str(piece.message["content"]).strip() in text for piece in self.start)

    def origins(self, context_tokens: int, prompt_tokens: int) -> dict[str, int]:
        """Where the context's tokens come from; they sum to `context_tokens`, template tokens count as observed."""
        own = sum(piece.own for piece in self.shown())
        inserted = sum(piece.inserted for piece in self.shown())
        observed = max(0, context_tokens - prompt_tokens - own - inserted)
        return {
            "prompt": context_tokens - observed - own - inserted,
            "observed": observed,
            "own": own,
            "policy": inserted,
        }


def observation(text: str, inserted: int = 0) -> Piece:
    """A result as a message of the context; `inserted` of its tokens are the policy's own words."""
    return Piece({"role": "tool", "content": text}, inserted=inserted)
