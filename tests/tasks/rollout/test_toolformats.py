"""Calls as Llama 3 writes them, and that nothing else is ever run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from data_contracts.records import ToolCall
from models.chat import Chat
from tasks.rollout.toolformats import FORMATS

EDIT = '{"name": "edit", "parameters": {"line": 3, "text": "a; b"}}'
EDIT_CALL = ToolCall(name="edit", arguments={"line": 3, "text": "a; b"})
TEST = '{"name": "test", "parameters": {}}'
parse = FORMATS["llama3"].parse


def test_the_whole_message_is_a_call_or_several() -> None:
    assert parse(EDIT) == ("", (EDIT_CALL,), ())
    assert parse(f"<|python_tag|>{EDIT}\n") == ("", (EDIT_CALL,), ())
    assert parse(f"{EDIT}; {TEST}") == ("", (EDIT_CALL, ToolCall(name="test")), ())
    assert parse('{"name": "test"}').calls == (ToolCall(name="test"),)


def test_words_are_content() -> None:
    assert parse(" just words ") == ("just words", (), ())
    assert parse(f"I could call {EDIT}") == (f"I could call {EDIT}", (), ())
    assert parse("") == ("", (), ())


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (EDIT[:-1], "not JSON"),
        (EDIT + " done", "not one JSON object"),
        (EDIT + ";", "not JSON"),
        (f"{EDIT}; oops", "not JSON"),
        ("<|python_tag|>print(1)", "not JSON"),
        ('{"parameters": {}}', 'no "name"'),
        ('{"name": "test", "arguments": {}}', 'besides "name" and "parameters": arguments'),
        ('{"name": "test", "parameters": [1]}', '"parameters" is not an object'),
        ('{"name": "a", "name": "b"}', "twice"),
        ('{"name": "a", "parameters": {"n": 1e999}}', "not finite"),
        ('{"name": "a", "parameters": ' + '{"a":' * 40 + "1" + "}" * 41, "nests deeper"),
        ("{" + "[" * 100_000, "not JSON"),
    ],
)
def test_a_broken_call_is_one_error_and_nothing_is_run(broken: str, why: str) -> None:
    parsed = parse(broken)
    assert (parsed.calls, len(parsed.errors)) == ((), 1)
    assert why in parsed.errors[0]


def test_an_agent_reads_the_form_that_it_is_told(drive: Callable[..., Any], chats: dict[str, Chat]) -> None:
    d = drive(with_chat=chats["llama3"], tool_format="llama3", max_turn_tokens=90)
    d.say('{"name": "look", "parameters": {"n": 2}}')
    d.say('<tool_call>{"name": "look", "arguments": {}}</tool_call>')
    d.say('{"name": "submit", "parameters": {}}')
    trajectory = d.finish().trajectory
    assert trajectory.status == "completed"
    assert [turn.observation for turn in trajectory.turns] == ["line line ", FORMATS["llama3"].no_call, "submitted"]
    assert [call.name for call in d.session.called] == ["look", "submit"]
