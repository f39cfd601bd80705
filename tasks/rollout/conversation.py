"""What the model of a session is shown: messages, and the exact token ids they stand for.

show(messages) -> ids -> said(sampled ids) -> show(more messages) -> the ids so far and what the template adds, or,
                                                                     where it would change them, all of them afresh
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Message = dict[str, Any]


class ChatLike(Protocol):
    """What a session needs of `models.chat.Chat`."""

    @property
    def stop_ids(self) -> frozenset[int]: ...

    @property
    def end_of_turn(self) -> str: ...

    def text(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> str: ...

    def ids(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class Conversation:
    """The context that the next turn is sampled from, kept beside the text it renders to.

    The template renders the whole conversation at every turn. Where that begins with the text so far, the ids so far
    stay as they are, what was sampled among them, and only the rest is tokenised: it starts at a special token, which
    no merge crosses. Where it does not, the template or the context policy rewrote history, and the ids are those of
    the new text. Sampling from them begins a new segment (`SegmentWriter` sees it at the ids).
    """

    def __init__(self, chat: ChatLike, tools: Sequence[Message] = ()) -> None:
        self._chat, self._tools = chat, list(tools)
        self.ids: list[int] = []
        self.text = ""
        self._kept_ids: list[int] = []
        self._kept_text = ""

    def show(self, messages: Sequence[Message]) -> None:
        """Make `messages` the context. Showing others before anything was sampled replaces them."""
        self.text = self._chat.text(messages, self._tools)
        if self.text.startswith(self._kept_text):
            self.ids = self._kept_ids + self._chat.ids(self.text[len(self._kept_text) :])
        else:
            self.ids = self._chat.ids(self.text)

    def said(self, ids: Sequence[int]) -> str:
        """Add what the model sampled after the context; returns its text, without the end-of-turn token."""
        said = self._chat.decode(ids)
        closed = bool(ids) and ids[-1] in self._chat.stop_ids
        self._kept_ids = self.ids = [*self.ids, *ids]
        self._kept_text = self.text = self.text + said + (self._chat.end_of_turn if closed else "")
        return said
