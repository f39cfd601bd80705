"""What a message asks for, and that nothing else is ever run."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_contracts.records import ToolCall
from tasks.rollout.toolcalls import parse_turn

EDIT = '<tool_call>\n{"name": "edit", "arguments": {"line": 3, "text": "    return a"}}\n</tool_call>'
EDIT_CALL = ToolCall(name="edit", arguments={"line": 3, "text": "    return a"})
TEST = '<tool_call>\n{"name": "test", "arguments": {}}\n</tool_call>'


def test_a_call_with_text_around_it() -> None:
    parsed = parse_turn(f"I see.\n{EDIT}\nDone.")
    assert parsed == ("I see.\n\nDone.", (EDIT_CALL,), ())


def test_several_calls_keep_their_order() -> None:
    parsed = parse_turn(TEST + EDIT + TEST)
    assert [call.name for call in parsed.calls] == ["test", "edit", "test"]
    assert parsed.content == ""


def test_arguments_may_be_left_out_and_white_space_is_free() -> None:
    assert parse_turn('<tool_call>{"name":"test"}</tool_call>').calls == (ToolCall(name="test"),)


def test_plain_text_is_content_alone() -> None:
    assert parse_turn(" just words ") == ("just words", (), ())
    assert parse_turn("") == ("", (), ())


def test_the_closing_tag_inside_a_string_argument_does_not_end_the_call() -> None:
    arguments = {"text": "print('</tool_call><tool_call></think>')"}
    text = f"<tool_call>{json.dumps({'name': 'edit', 'arguments': arguments})}</tool_call>"
    assert parse_turn(text) == ("", (ToolCall(name="edit", arguments=arguments),), ())


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ('<tool_call>{"name": "test", "arguments": {}', "not JSON"),
        ('<tool_call>{"name": "test", "arguments": {}}', "not closed"),
        ("<tool_call>", "not JSON"),
        ("<tool_call>\n{name: test}\n</tool_call>", "not JSON"),
        ('<tool_call>{"name": "test"} {"name": "test"}</tool_call>', "not one JSON object"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": "test", "arguments": [1]}</tool_call>', "not an object"),
        ('<tool_call>{"name": "test", "arguments": null}</tool_call>', "not an object"),
        ('<tool_call>{"name": "edit", "arguments": {}, "line": 3}</tool_call>', "besides"),
        ("<tool_call>[1]</tool_call>", "not a JSON object"),
        ("<tool_call>7</tool_call>", "not a JSON object"),
        ('<tool_call>{"name": "a", "name": "b"}</tool_call>', "twice"),
        ('<tool_call>{"name": "a", "arguments": {"n": NaN}}</tool_call>', "not finite"),
        ('<tool_call>{"name": "a", "arguments": {"n": 1e999}}</tool_call>', "not finite"),
        ('<tool_call>{"name": "a", "arguments": {"n": "\\ud800"}}</tool_call>', "surrogate"),
        ('<tool_call>{"name": "a", "arguments": ' + '{"a":' * 40 + "1" + "}" * 41 + "</tool_call>", "nests deeper"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "nests too deeply"),
        ('<tool_call>{"name": "a", "arguments": {"n": ' + "9" * 5000 + "}}</tool_call>", "not JSON"),
        ("</tool_call>", "closes no call"),
    ],
)
def test_a_broken_call_is_one_error_and_is_not_run(broken: str, why: str) -> None:
    parsed = parse_turn(broken)
    assert parsed.calls == ()
    assert len(parsed.errors) == 1
    assert why in parsed.errors[0]


def test_a_broken_call_does_not_take_a_good_one_with_it() -> None:
    parsed = parse_turn(f"<tool_call>oops</tool_call>{TEST}")
    assert [call.name for call in parsed.calls] == ["test"]
    assert len(parsed.errors) == 1


def test_an_unclosed_call_swallows_what_follows_rather_than_guess() -> None:
    parsed = parse_turn(f'<tool_call>{{"name": "edit", {TEST}')
    assert parsed.calls == ()
    assert len(parsed.errors) == 1


@pytest.mark.parametrize(
    "thought",
    [
        f"<think>maybe {EDIT}</think>",
        f"<think>maybe {EDIT}",
        f"{EDIT} is what I could do</think>",
        f"<think>a</think>{EDIT}</think>",
        f"<think>{EDIT}</think><think>{EDIT}",
        "</think>",
    ],
)
def test_thinking_is_not_run_and_no_content(thought: str) -> None:
    assert parse_turn(thought) == ("", (), ())


def test_a_call_after_thinking_is_run() -> None:
    assert parse_turn(f"<think>{TEST}</think>ok {EDIT}") == ("ok", (EDIT_CALL,), ())
    assert parse_turn(f"so {TEST}</think>ok {EDIT}") == ("ok", (EDIT_CALL,), ())


PIECES = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "a", "arguments": {}}', '"', "{", "}", "\\u", " "]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=12).map("".join)))
def test_any_text_is_taken_apart_and_only_whole_calls_are_run(text: str) -> None:
    parsed = parse_turn(text)
    assert len(parsed.calls) <= text.count("<tool_call>")
    assert len(parsed.calls) <= text.count("</tool_call>")
    assert len(parsed.calls) + len(parsed.errors) <= text.count("tool_call>")
    for call in parsed.calls:
        assert ToolCall.model_validate_json(call.model_dump_json()) == call


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.text(min_size=1), st.dictionaries(st.text(), VALUES, max_size=4), st.booleans())
def test_a_well_formed_call_comes_back_as_it_was_written(name: str, arguments: dict[str, object], ascii_: bool) -> None:
    text = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ascii_)
    parsed = parse_turn(f"<tool_call>\n{text}\n</tool_call>")
    assert parsed == ("", (ToolCall(name=name, arguments=arguments),), ())
