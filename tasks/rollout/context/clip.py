"""The policy `clip`: a long observation is cut in the middle, by tokens, and says so.

result of 5,312 tokens -> its first 250, "... 4812 tokens left out ...", its last 250
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.rollout.context.keep import Keep, Piece, observation
from tasks.rollout.conversation import ChatLike

_BROKEN = "\ufffd"


class Clip(Keep):
    """The results of a turn get `observation_tokens` together; where they have more, each is cut to an equal share."""

    def admit(self, texts: Sequence[str]) -> list[Piece]:
        most = self.config.observation_tokens
        # A token is at least a byte of its text, so most results need no counting.
        if sum(len(text.encode()) for text in texts) <= most:
            return super().admit(texts)
        if sum(len(self.chat.ids(text)) for text in texts) <= most:
            return super().admit(texts)
        return [observation(cut_middle(text, most // len(texts), self.chat)) for text in texts]


def cut_middle(text: str, most: int, chat: ChatLike) -> str:
    """`text` in at most `most` tokens: whole, or its two ends around a line that says how many tokens are gone.

    Where not even that line fits, it is all that is left.
    """
    ids = chat.ids(text)
    room = most
    while len(ids) > most and room > 0:
        clipped = _ends(ids, room, chat)
        # What is left may be tokenised differently than before, so it is counted as the model will read it.
        over = len(chat.ids(clipped)) - most
        if over <= 0:
            return clipped
        room -= over
    return text if len(ids) <= most else _notice(len(ids)).strip()


def _ends(ids: Sequence[int], room: int, chat: ChatLike) -> str:
    """The first and last tokens of `ids`, `room` in all, without the parts of characters at the cut."""
    first, last = (room + 1) // 2, room // 2
    head = chat.decode(ids[:first])
    tail = chat.decode(ids[len(ids) - last :])
    return head.rstrip(_BROKEN) + _notice(len(ids) - first - last) + tail.lstrip(_BROKEN)


def _notice(count: int) -> str:
    return f"\n... {count} tokens left out ...\n"
