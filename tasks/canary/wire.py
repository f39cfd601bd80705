"""OpenAI's chat form, in and out: what a request may ask, and how a completion and an error look.

request JSON -> ChatRequest;  completion -> response JSON;  mistake -> WireError -> error JSON
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tasks.rollout.engine import Completion
from tasks.rollout.toolcalls import ParsedTurn
from tasks.rollout.toolformats import ToolFormat

Message = dict[str, Any]


class WireError(Exception):
    """An answer that is an error: an HTTP status, OpenAI's error type and code, and one sentence."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


class Loose(BaseModel):
    """What clients send beside the fields named here is no concern of ours."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class _Function(Loose):
    name: str
    arguments: str = "{}"


class _Call(Loose):
    id: str = ""
    function: _Function


class _Part(Loose):
    type: Literal["text"]
    text: str


class _StreamOptions(Loose):
    include_usage: bool = False


class ChatMessage(Loose):
    """One message of the conversation; content parts must be text."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None

    def plain(self) -> Message:
        """The message in one fixed form, so that what was sent can be compared with what was remembered."""
        text = "".join(part.text for part in self.content) if isinstance(self.content, list) else self.content
        role = "system" if self.role == "developer" else self.role
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in self.tool_calls or []
        ]
        return {"role": role, "content": text or ""} | ({"tool_calls": calls} if calls else {})


class ChatRequest(Loose):
    """The subset of POST /v1/chat/completions that is served; what would be silently wrong is refused."""

    messages: list[ChatMessage] = Field(min_length=1)
    model: str = ""
    tools: list[dict[str, Any]] = []
    tool_choice: Literal["auto", "none"] | None = None
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    n: Literal[1] | None = None
    stop: None = None
    logprobs: Literal[False] | None = None

    @model_validator(mode="before")
    @classmethod
    def _nulls_are_defaults(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class Feedback(Loose):
    """How a session ended, as its owner saw it; `outcome` None: it could not be told."""

    session: str = Field(min_length=1)
    outcome: bool | None
    reward: float | None = None
    metadata: dict[str, Any] = {}

    def told(self) -> dict[str, Any]:
        """The metadata as it is recorded: the reward, where there is one, is among it."""
        return self.metadata | ({} if self.reward is None else {"reward": self.reward})


def parse_body(kind: type[Loose], body: bytes) -> Any:
    """A body as `kind`; a WireError 400 names the first field that is wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "body"
        raise WireError(400, "invalid_value", f"{field}: {first['msg']}") from error


def assistant_message(text: str, turn: int, form: ToolFormat, *, cut: bool) -> Message:
    """A completion's text as an assistant message.

    `content` is the text outside calls; when nothing in it could be read as a call, it is the text as it stands. A
    message that was cut by length has no calls, since more was to come. `call_errors` (ours, beside OpenAI's fields)
    says what was wrong with calls that could not be read.
    """
    parsed = ParsedTurn(text, (), ()) if cut else form.parse(text)
    calls = [
        {
            "id": f"call_{turn}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for index, call in enumerate(parsed.calls)
    ]
    content = parsed.content if calls else text
    message: Message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    if parsed.errors:
        message["call_errors"] = list(parsed.errors)
    return message


def completion_body(session: str, turn: int, release: str, message: Message, completion: Completion) -> dict[str, Any]:
    """The response of POST /v1/chat/completions."""
    reason = "length" if completion.finish_reason == "length" else "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": f"chatcmpl-{session}-{turn}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": release,
        "system_fingerprint": completion.policy_digest,
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": usage_of(completion),
    }


def usage_of(completion: Completion) -> dict[str, Any]:
    """Tokens of a completion, in OpenAI's form."""
    sampled = len(completion.token_ids)
    return {
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": completion.prompt_tokens + sampled,
        "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
    }


def chunk_head(session: str, turn: int, release: str, digest: str) -> dict[str, Any]:
    """What every chunk of a streamed response begins with."""
    return {
        "id": f"chatcmpl-{session}-{turn}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": release,
        "system_fingerprint": digest,
    }


def models_body(names: Sequence[str]) -> dict[str, Any]:
    """The response of GET /v1/models."""
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "ratchetrl"} for name in names]
    return {"object": "list", "data": models}
