"""OpenAI's completions form, in and out: a prompt as text or token ids, and its continuation as both.

request JSON -> TextRequest;  completion -> response JSON
"""

from __future__ import annotations

import time
from typing import Any, Literal

from pydantic import Field, model_validator

from models.chat import Chat
from tasks.canary.wire import Loose, WireError, usage_of
from tasks.rollout.engine import Completion


class TextRequest(Loose):
    """The subset of POST /v1/completions that is served: one prompt, one choice.

    `logprobs` 0 gives the log-probability of each sampled token; those of other tokens are not known. With
    `return_token_ids`, as vLLM has it, the answer holds the ids of prompt and completion.
    """

    prompt: str | list[int]
    model: str = ""
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    logprobs: Literal[0] | None = None
    return_token_ids: bool = False
    stream: Literal[False] | None = None
    echo: Literal[False] | None = None
    n: Literal[1] | None = None
    best_of: Literal[1] | None = None
    stop: None = None
    suffix: None = None

    @model_validator(mode="before")
    @classmethod
    def _nulls_are_defaults(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data

    def ids(self, chat: Chat) -> list[int]:
        """The prompt's tokens, as given; WireError 400 where there is none, or one that the model does not have."""
        ids = chat.ids(self.prompt) if isinstance(self.prompt, str) else list(self.prompt)
        known = len(chat.tokenizer)
        if not ids or not all(0 <= token < known for token in ids):
            raise WireError(400, "invalid_value", f"prompt: at least one token, each from 0 to {known - 1}")
        return ids


def text_body(id: str, release: str, asked: TextRequest, prompt: list[int], completion: Completion, chat: Chat) -> Any:
    """The response of POST /v1/completions."""
    choice: dict[str, Any] = {
        "index": 0,
        "text": chat.decode(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "logprobs": None if asked.logprobs is None else _logprobs(completion, chat),
    }
    if asked.return_token_ids:
        choice |= {"token_ids": completion.token_ids, "prompt_token_ids": prompt}
    return {
        "id": id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": release,
        "system_fingerprint": completion.policy_digest,
        "choices": [choice],
        "usage": usage_of(completion),
    }


def _logprobs(completion: Completion, chat: Chat) -> dict[str, Any]:
    tokens = [str(chat.tokenizer.decode([token])) for token in completion.token_ids]
    offsets, at = [], 0
    for token in tokens:
        offsets.append(at)
        at += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": completion.logprobs,
        "top_logprobs": None,
        "text_offset": offsets,
    }
