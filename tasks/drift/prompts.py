"""What a trajectory's user asked, read off the ids of its first prompt as the chat template wrote them.

prompt ids -> text -> the last message between the template's mark of a user and its end of a turn

Live prompts are kept as messages, evaluations as ids: both sides have to hold the same text to be compared.
"""

from __future__ import annotations

from pathlib import Path

from data_contracts.records import Trajectory
from models.chat import Chat

_MARK = "what-was-asked"


def load_chat(base: Path) -> Chat:
    """The chat of a base model's folder, without its weights."""
    from transformers import AutoTokenizer

    return Chat(AutoTokenizer.from_pretrained(base))


class Asked:
    """From a trajectory to the text that its user began with; None where its ids are not of this chat's template."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        known = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        text = chat.text([*known, {"role": "user", "content": _MARK}])
        self._head = text[: text.index(_MARK)].rpartition(chat.end_of_turn)[2].strip()

    def __call__(self, trajectory: Trajectory) -> str | None:
        text = self._chat.tokenizer.decode(
            trajectory.prompt_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        _, found, rest = text.rpartition(self._head)
        return rest.partition(self._chat.end_of_turn)[0].strip() if found else None
