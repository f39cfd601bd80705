"""The policy `compact`: when the context is long, the model sums up, and goes on from its summary.

prompt, turns ... -> question -> summary (sampled, trained) | new segment: prompt as it was + summary -> turns ...

The summary is sampled in the segment it sums up, unless the template rewrites history for the question. It counts as
sampled tokens, within the problem's budget, but not as a turn: the problem's turns are for work, under any policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from data_contracts.errors import UserError
from tasks.rollout.context.clip import Clip
from tasks.rollout.context.config import ContextConfig
from tasks.rollout.context.keep import Piece, Question
from tasks.rollout.conversation import ChatLike, Message

ASK = (
    "The conversation is getting too long. Call no tool now. Write a summary to go on from: what you did and found, "
    "what is left to do, every name, number and result that is still needed. The task itself will be shown again."
)
RESTATED = "Summary of the work so far, by yourself:"


class Compact(Clip):
    """Asks for a summary once the context has `compact_at` tokens. Results are clipped, so that it can not leap far."""

    def __init__(self, config: ContextConfig, start: Sequence[Message], chat: ChatLike) -> None:
        super().__init__(config, start, chat)
        least = len(chat.ids(chat.text(self.messages()))) + config.summary_tokens
        if least >= config.compact_at:
            raise UserError(
                f"rollout.context.compact_at = {config.compact_at}: a prompt and its summary have up to {least} tokens "
                f"already, which leaves no room for work: set compact_at to {2 * least} or more."
            )

    def question(self, context_tokens: int) -> Question | None:
        if context_tokens < self.config.compact_at:
            return None
        self.pieces.append(Piece({"role": "user", "content": ASK}, inserted=len(self.chat.ids(ASK))))
        return Question(ASK, self.config.summary_tokens)

    def answered(self, text: str) -> None:
        """Start over from the prompt, word for word, with the summary after it."""
        summary = f"{RESTATED}\n{text}"
        inserted = len(self.chat.ids(summary))
        *before, last = self.start
        if last.message["role"] != "user":
            self.pieces = [*self.start, Piece({"role": "user", "content": summary}, inserted=inserted)]
            return
        # In the user's message rather than after it: some templates refuse two user messages in a row.
        message = last.message | {"content": f"{last.message['content']}\n\n{summary}"}
        self.pieces = [*before, Piece(message, inserted=inserted)]


def check_window(config: ContextConfig, max_turn_tokens: int, chat: ChatLike, window: int) -> None:
    """Refuse a mark from which the summary might not fit the model's context of `window` tokens any more."""
    beyond = max_turn_tokens + config.observation_tokens + len(chat.ids(ASK)) + config.summary_tokens
    if config.compact_at + beyond > window:
        raise UserError(
            f"rollout.context.compact_at = {config.compact_at}: a turn, its results and the summary may add {beyond} "
            f"tokens to that, the model's context has {window}: set compact_at to {window - beyond} or less, or lower "
            "observation_tokens or summary_tokens."
        )
