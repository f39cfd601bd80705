"""Context policies: what is kept, cut, restated, or left outside and read again on demand; one small class each."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.rollout.context.clip import Clip
from tasks.rollout.context.compact import Compact, check_window
from tasks.rollout.context.config import ContextConfig
from tasks.rollout.context.externalise import Externalise
from tasks.rollout.context.keep import Keep, Piece, observation
from tasks.rollout.context.notes import Notes
from tasks.rollout.conversation import ChatLike, Message

POLICIES: dict[str, type[Keep]] = {
    "keep": Keep,
    "clip": Clip,
    "externalise": Externalise,
    "compact": Compact,
    "notes": Notes,
}


def context_policy(config: ContextConfig, start: Sequence[Message], chat: ChatLike) -> Keep:
    """The policy of one session, which starts with the environment's messages `start`."""
    return POLICIES[config.policy](config, start, chat)


__all__ = ["POLICIES", "ContextConfig", "Keep", "Piece", "check_window", "context_policy", "observation"]
