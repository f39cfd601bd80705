"""The policy `notes`: a state that the agent keeps through a tool, shown last in the context.

note(key, text) -> notes -> messages without the old notes + the notes as they are -> a new segment
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from data_contracts.records import Record, ToolCall
from tasks.rollout.context.config import ContextConfig
from tasks.rollout.context.keep import Keep, Piece, observation
from tasks.rollout.context.tools import Tool, refused
from tasks.rollout.conversation import ChatLike, Message
from tasks.rollout.environments.base import ToolResult


class Writing(Record):
    """A note to keep."""

    key: str = Field(min_length=1, max_length=60, description="the note's name")
    text: str = Field(description="the note; an empty text removes it")


NOTE = Tool("note", "Keep a note under a name; your notes are always shown to you, the latest text of each.", Writing)


class Notes(Keep):
    """The notes are one message at the end. Where they change, or the end moved on too far, they are shown anew there.

    Without notes nothing is shown and nothing rewritten. A context in which the notes have moved does not begin with
    the one before, so it is a new segment; one in which they stay where they are goes on in the same.
    """

    def __init__(self, config: ContextConfig, start: Sequence[Message], chat: ChatLike) -> None:
        super().__init__(config, start, chat)
        self.notes: dict[str, str] = {}
        self._at, self._shown = len(self.pieces), ""

    def tools(self) -> list[dict[str, Any]]:
        return [NOTE.schema()]

    def call(self, call: ToolCall) -> ToolResult:
        asked = NOTE.read(call)
        if isinstance(asked, ToolResult):
            return asked
        notes = {**self.notes, asked.key: asked.text} if asked.text else _without(self.notes, asked.key)
        size, most = len(self.chat.ids(_rendered(notes))), self.config.notes_tokens
        if asked.text and size > most:
            return refused(f"all notes together would have {size} tokens, at most {most} fit: shorten or remove one")
        self.notes = notes
        return ToolResult("noted" if asked.text else "removed")

    def shown(self) -> list[Piece]:
        text = _rendered(self.notes)
        if not text:
            return self.pieces
        notes = observation(text, inserted=len(self.chat.ids(text)))
        return [*self.pieces[: self._at], notes, *self.pieces[self._at :]]

    def observed(self, pieces: Sequence[Piece]) -> None:
        super().observed(pieces)
        text = _rendered(self.notes)
        if text and (text != self._shown or self._behind() > self.config.notes_within):
            self._at, self._shown = len(self.pieces), text

    def _behind(self) -> int:
        """Tokens of what was said and observed after the notes, without those of the template."""
        later = self.pieces[self._at :]
        return sum(piece.own or len(self.chat.ids(piece.message["content"])) for piece in later)


def _rendered(notes: dict[str, str]) -> str:
    return "\n".join(["Your notes:", *(f"{key}: {text}" for key, text in notes.items())]) if notes else ""


def _without(notes: dict[str, str], key: str) -> dict[str, str]:
    return {name: text for name, text in notes.items() if name != key}
