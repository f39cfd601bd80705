"""What a model message asks for: calls in the Hermes form, and nothing that was not clearly asked.

text -> parse_turn -> ParsedTurn(content, calls, errors)

    <tool_call>
    {"name": "edit", "arguments": {"line": 3, "text": "    return a"}}
    </tool_call>

Thinking (`<think>...</think>`) is neither run nor content. Where the template opened the thinking block already, the
message holds its closing tag alone: all before that tag was thinking.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from data_contracts.records import ToolCall

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_TAG = re.compile("|".join(TAGS))
_CLOSE = "</tool_call>"
_SPACE = re.compile(r"\s*")
_DEEPEST = 16


class ParsedTurn(NamedTuple):
    """A message taken apart: text outside calls and thinking, the calls in order, one sentence per broken call."""

    content: str
    calls: tuple[ToolCall, ...]
    errors: tuple[str, ...]


def parse_turn(text: str) -> ParsedTurn:
    """Take a model message apart. Never raises: what can not be read as a call is an error, and is not run."""
    content: list[str] = []
    calls: list[ToolCall] = []
    errors: list[str] = []
    at = 0
    while tag := _TAG.search(text, at):
        content.append(text[at : tag.start()])
        at = tag.end()
        if tag.group() == "<think>":
            closing = text.find("</think>", at)
            at = len(text) if closing < 0 else closing + len("</think>")
        elif tag.group() == "</think>":
            content, calls, errors = [], [], []
        elif tag.group() == _CLOSE:
            errors.append("</tool_call> closes no call")
        else:
            call, at = _read_call(text, at)
            if isinstance(call, str):
                errors.append(call)
            else:
                calls.append(call)
    content.append(text[at:])
    return ParsedTurn("".join(content).strip(), tuple(calls), tuple(errors))


def _read_call(text: str, start: int) -> tuple[ToolCall | str, int]:
    """The call whose opening tag ends at `start`, or what is wrong with it; and where to read on."""
    try:
        # Decoded before the closing tag is looked for, since a string in the arguments may hold that very tag.
        value, end = read_json(text, start)
    except (ValueError, RecursionError) as error:
        return f"the call is not JSON: {cause_of(error)}", _after_close(text, start)
    if not text.startswith(_CLOSE, end):
        missing = text.find(_CLOSE, end) < 0
        return _UNCLOSED if missing else "the call is not one JSON object", _after_close(text, end)
    return checked_call(value), end + len(_CLOSE)


_UNCLOSED = "the call is not closed by </tool_call>"


def checked_call(value: Any, key: str = "arguments") -> ToolCall | str:
    """The call that a JSON value stands for, or why it is none; `key` holds its arguments."""
    if not isinstance(value, dict):
        return "the call is not a JSON object"
    name, arguments = value.get("name"), value.get(key, {})
    if not isinstance(name, str) or not name:
        return 'the call has no "name"'
    if unknown := sorted(set(value) - {"name", key}):
        return f'the call has keys besides "name" and "{key}": {", ".join(unknown)[:60]}'
    if not isinstance(arguments, dict):
        return f'"{key}" is not an object'
    if _depth(arguments) > _DEEPEST:
        return f'"{key}" nests deeper than {_DEEPEST}'
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "the call holds half a surrogate pair, which is no text"
    return ToolCall(name=name, arguments=arguments)


def read_json(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins after white space at `start`, and where to read on behind it and white space.

    Raises ValueError where there is none, or one with a key twice or a number that is not finite; RecursionError.
    """
    value, end = _DECODER.raw_decode(text, _skip(text, start))
    return value, _skip(text, end)


def _after_close(text: str, start: int) -> int:
    """Behind the call's closing tag; a call that is never closed takes the rest of the message with it."""
    closing = text.find(_CLOSE, start)
    return len(text) if closing < 0 else closing + len(_CLOSE)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level and depth <= _DEEPEST:
        inner = [list(v.values()) if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)]
        level = [item for items in inner for item in items]
        depth += 1
    return depth


def cause_of(error: ValueError | RecursionError) -> str:
    """A short reason why a text is not JSON."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "it nests too deeply" if isinstance(error, RecursionError) else str(error)[:80]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError("a number is not finite")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)
