"""The forms in which models write tool calls, by the name that a recipe gives them (`rollout.tool_format`).

model message -> FORMATS[name].parse -> ParsedTurn(content, calls, errors)
"""

from __future__ import annotations

from typing import Protocol

from data_contracts.records import ToolCall
from tasks.rollout.toolcalls import TAGS, ParsedTurn, cause_of, checked_call, parse_turn, read_json

_PYTHON = "<|python_tag|>"


class ToolFormat(Protocol):
    """One way to write calls. `no_call` is what an agent hears whose message has none."""

    no_call: str

    def parse(self, text: str) -> ParsedTurn:
        """Take a model message apart. Never raises; what can not be read as a call is an error, and is not run."""
        ...

    def settled(self, text: str) -> int:
        """Of a message that is still being written: how many characters are words to be read, whatever follows."""
        ...


class Hermes:
    """Calls as JSON between <tool_call> tags, thinking between <think> tags: Hermes, Qwen."""

    no_call = "error: no tool call: answer with <tool_call>"

    def parse(self, text: str) -> ParsedTurn:
        return parse_turn(text)

    def settled(self, text: str) -> int:
        """Up to the first tag, or to what may become one; white space waits for what follows it."""
        tag = next((at for at, sign in enumerate(text) if sign == "<" and _begins_tag(text[at:])), len(text))
        return len(text[:tag].rstrip()) if not text[:1].isspace() else 0


class Llama3:
    """The whole message is one call, `{"name": ..., "parameters": {...}}`, or several with `;` between: Llama 3.

    The tag <|python_tag|> may stand before it. A message that begins otherwise is content, and one with anything
    besides calls is an error: what stands in the middle of words was not clearly asked for.
    """

    no_call = 'error: no tool call: answer with {"name": ..., "parameters": {...}}'

    def parse(self, text: str) -> ParsedTurn:
        body = text.strip()
        tagged = body.startswith(_PYTHON)
        if not tagged and not body.startswith("{"):
            return ParsedTurn(body, (), ())
        found = _calls(body, len(_PYTHON) if tagged else 0)
        return ParsedTurn("", (), (found,)) if isinstance(found, str) else ParsedTurn("", found, ())

    def settled(self, text: str) -> int:
        """All of it, once it begins with neither a call nor its tag."""
        body = text.lstrip()
        if len(body) < len(text) or body.startswith("{") or _PYTHON.startswith(body[: len(_PYTHON)]):
            return 0
        return len(text.rstrip())


def _begins_tag(text: str) -> bool:
    return any(text.startswith(tag) or tag.startswith(text) for tag in TAGS)


def _calls(text: str, at: int) -> tuple[ToolCall, ...] | str:
    """All calls from `at` to the end of the text, or what is wrong with the first broken one."""
    calls: list[ToolCall] = []
    while True:
        try:
            value, at = read_json(text, at)
        except (ValueError, RecursionError) as error:
            return f"the call is not JSON: {cause_of(error)}"
        call = checked_call(value, "parameters")
        if isinstance(call, str):
            return call
        calls.append(call)
        if at == len(text):
            return tuple(calls)
        if text[at] != ";":
            return "the call is not one JSON object"
        at += 1


FORMATS: dict[str, ToolFormat] = {"hermes": Hermes(), "llama3": Llama3()}
