"""The policy `externalise`: a large result stays outside the context, and is read on demand.

large result -> artifact-1 + its handle and first lines in the context -> read_artifact(name, start, count) -> lines
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import Field

from data_contracts.records import Record, ToolCall
from tasks.rollout.context.config import ContextConfig
from tasks.rollout.context.keep import Keep, Piece, observation
from tasks.rollout.context.tools import Tool, refused
from tasks.rollout.conversation import ChatLike, Message
from tasks.rollout.environments.base import ToolResult

_WIDTH = 200
"""Characters of a line at most: longer ones are wrapped, so that every part of a result can be reached."""


class Reading(Record):
    """Which lines of which artifact."""

    name: str = Field(description="the artifact's name")
    start: int = Field(default=1, ge=1, description="first line, from 1")
    count: int = Field(default=40, ge=1, description="number of lines")


READ = Tool("read_artifact", "Show lines of a large result that was kept outside the conversation.", Reading)


class _Lines(NamedTuple):
    """Lines `first` to `last` (from 1, inclusive) of an artifact."""

    text: str
    first: int
    last: int


class Externalise(Keep):
    """Results of more than `observation_tokens` become artifacts; a reading gives no more than that at a time."""

    def __init__(self, config: ContextConfig, start: Sequence[Message], chat: ChatLike) -> None:
        super().__init__(config, start, chat)
        self.artifacts: dict[str, list[str]] = {}

    def tools(self) -> list[dict[str, Any]]:
        return [READ.schema()]

    def admit(self, texts: Sequence[str]) -> list[Piece]:
        return [self._handle(text) if self._is_large(text) else observation(text) for text in texts]

    def call(self, call: ToolCall) -> ToolResult:
        asked = READ.read(call)
        if isinstance(asked, ToolResult):
            return asked
        lines = self.artifacts.get(asked.name)
        if lines is None:
            known = ", ".join(self.artifacts) or "none yet"
            return refused(f"no artifact {asked.name!r}: there are {known}")
        if asked.start > len(lines):
            return refused(f"{asked.name} has {len(lines)} lines")
        read = self._lines(lines, asked.start, asked.count, self.config.observation_tokens)
        return ToolResult(f"[{asked.name}: lines {read.first} to {read.last} of {len(lines)}]\n{read.text}")

    def _is_large(self, text: str) -> bool:
        most = self.config.observation_tokens
        return len(text.encode()) > most and len(self.chat.ids(text)) > most

    def _handle(self, text: str) -> Piece:
        """Put a result outside; the piece that stands for it names it and shows how it begins."""
        name = f"artifact-{len(self.artifacts) + 1}"
        lines = self.artifacts[name] = _wrapped(text)
        preview = self._lines(lines, 1, len(lines), self.config.preview_tokens)
        size = f"{len(self.chat.ids(text))} tokens in {len(lines)} lines"
        handle = f"[{name}: {size}, kept outside; {READ.name} shows them. Lines 1 to {preview.last}:]\n{preview.text}"
        return observation(handle, inserted=len(self.chat.ids(handle)))

    def _lines(self, lines: Sequence[str], start: int, count: int, tokens: int) -> _Lines:
        """As many of the lines asked for as `tokens` allow, and at least one."""
        wanted = lines[start - 1 : start - 1 + count]
        used, taken = 0, 0
        for line in wanted:
            used += len(self.chat.ids(line + "\n"))
            if taken and used > tokens:
                break
            taken += 1
        return _Lines("\n".join(wanted[:taken]), start, start - 1 + taken)


def _wrapped(text: str) -> list[str]:
    return [line[at : at + _WIDTH] for line in text.split("\n") for at in range(0, max(1, len(line)), _WIDTH)]
