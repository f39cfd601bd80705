"""Conversations as token ids: what the template inserts, and nothing that was sampled is ever tokenised again.

messages -> prompt ids;  observations -> the ids between one completion and the next
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

Message = dict[str, Any]
_SENTINEL = "\u2039turn\u203a"


class Chat:
    """A tokenizer's chat template, by increments.

    The increment after a completion is read off the template once per number of observations, from a conversation
    with a sentinel for the completion, and starts at the end-of-turn token: a special token, at which no merge can
    cross. So prompt + completion + increment is exactly what the template renders for the whole conversation, unless
    the template rewrites history (drops a thinking block, say): `tasks.rollout.conversation` compares, and begins anew.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not tokenizer.chat_template:
            raise ValueError("the tokenizer has no chat template: use an instruction-tuned model, or set one")
        self.tokenizer = tokenizer
        self._observation = lru_cache(maxsize=4096)(self._render_observation)

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a model message."""
        return frozenset({self.tokenizer.convert_tokens_to_ids(self.end_of_turn)})

    @cached_property
    def end_of_turn(self) -> str:
        """The text that the template puts right after a model message: one special token."""
        tail = self._text([{"role": "user", "content": "q"}, {"role": "assistant", "content": _SENTINEL}], [], False)
        tail = tail[tail.index(_SENTINEL) + len(_SENTINEL) :]
        for token in sorted(self.tokenizer.all_special_tokens, key=len, reverse=True):
            if tail.startswith(token):
                return str(token)
        raise ValueError(f"the chat template ends a model message with {tail!r}, which is no special token")

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the template tells the model of the tools it is offered."""
        name = "a_tool_to_look_for"
        function = {"name": name, "description": "", "parameters": {"type": "object", "properties": {}}}
        return name in self.text([{"role": "user", "content": "q"}], [{"type": "function", "function": function}])

    def prompt(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """Ids of a conversation up to the point where the model speaks."""
        return self.ids(self.text(messages, tools))

    render_history = prompt

    def text(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> str:
        """A conversation as the template renders it, up to the point where the model speaks."""
        return self._text(messages, tools, True)

    def ids(self, text: str) -> list[int]:
        """Token ids of a text as it stands, special tokens read as such."""
        if self.tokenizer.is_fast:  # the same ids at half the cost of the call below, which is every turn's
            return list(self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def observation(self, texts: Sequence[str], *, closed: bool) -> list[int]:
        """Ids between a completion and the next one.

        `closed` says that the completion ended with the end-of-turn token; if not (it was cut by length), the ids
        begin with that token.
        """
        return list(self._observation(tuple(texts), closed))

    def _render_observation(self, texts: tuple[str, ...], closed: bool) -> list[int]:
        conversation: list[Message] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": _SENTINEL}]
        conversation += [{"role": "tool", "content": text} for text in texts]
        text = self._text(conversation, [], True)
        tail = text[text.index(_SENTINEL) + len(_SENTINEL) :]
        return self.ids(tail.removeprefix(self.end_of_turn) if closed else tail)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a completion, without the end-of-turn token."""
        kept = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return str(self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def completion(self, text: str) -> list[int]:
        """Ids of a model message that somebody else wrote (a demonstration), end-of-turn token included."""
        return self.ids(text + self.end_of_turn)

    def _text(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], generate: bool) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, add_generation_prompt=generate, tokenize=False
            )
        )
