"""The ids that a session samples from join to the template's own rendering, or are that rendering afresh."""

from __future__ import annotations

from typing import Any

import pytest

from models.chat import Chat
from tasks.rollout.conversation import Conversation
from tasks.rollout.segments import SegmentWriter

USER = {"role": "user", "content": "U1: fix add, keep its name."}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
THOUGHT = "<think>\nR1\n</think>\n\nA1"


def play(chat: Chat, turns: list[tuple[str, list[dict[str, Any]]]], *, cut: bool = False) -> Any:
    """Say each text and show what follows it; returns the conversation, its messages, segments and contexts."""
    conversation, writer, messages = Conversation(chat, TOOLS), SegmentWriter(), [USER]
    contexts, sampled = [], []
    for turn, (text, replies) in enumerate(turns):
        conversation.show(messages)
        writer.prompt(conversation.ids, turn)
        contexts.append(list(conversation.ids))
        ids = chat.completion(text)[: -1 if cut else None]
        writer.sampled(ids, [-0.5] * len(ids), turn, "policy-00000")
        sampled.append(ids)
        assert conversation.said(ids) == text
        messages = [*messages, {"role": "assistant", "content": text}, *replies]
    conversation.show(messages)
    return conversation, messages, writer.build("t"), contexts, sampled


def tool(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "tool", "content": text} for text in texts]


def trained(segment: Any) -> list[int]:
    return [token for token, mask in zip(segment.token_ids, segment.loss_mask, strict=True) if mask]


@pytest.mark.parametrize("cut", [False, True], ids=["closed", "cut"])
def test_increments_join_to_the_full_rendering_for_three_turns(template: Chat, cut: bool) -> None:
    turns = [("say 1", tool("saw\n1")), ("say 2 \u00e9\u4e2d", tool("a", "b")), ("say 3", tool("end"))]
    conversation, messages, segments, contexts, sampled = play(template, turns, cut=cut)
    assert conversation.ids == template.prompt(messages, TOOLS)
    assert len(segments) == 1
    assert trained(segments[0]) == [token for ids in sampled for token in ids]
    for earlier, ids, later in zip(contexts, sampled, [*contexts[1:], conversation.ids], strict=True):
        assert later[: len(earlier) + len(ids)] == earlier + ids


def test_what_was_sampled_stays_as_it_was_sampled_however_the_text_would_be_tokenised(template: Chat) -> None:
    conversation = Conversation(template)
    conversation.show([USER])
    before = list(conversation.ids)
    odd = [*(i for letter in "return" for i in template.ids(letter)), *template.stop_ids]
    assert len(odd) > len(template.completion("return"))
    assert conversation.said(odd) == "return"
    conversation.show([USER, {"role": "assistant", "content": "return"}, *tool("ok")])
    assert conversation.ids[: len(before) + len(odd)] == before + odd


def test_thinking_stays_in_a_tool_loop(chats: dict[str, Chat]) -> None:
    conversation, _, segments, _, _ = play(chats["qwen3"], [(THOUGHT, tool("seen")), ("A2", tool("ok"))])
    assert len(segments) == 1
    assert "R1" in conversation.text


def test_thinking_that_the_template_strips_begins_a_segment_and_stays_trained(chats: dict[str, Chat]) -> None:
    chat = chats["qwen3"]
    turns = [(THOUGHT, [{"role": "user", "content": "U2"}]), ("A2", tool("ok"))]
    _, messages, (first, second), contexts, sampled = play(chat, turns)
    assert (trained(first), trained(second)) == (sampled[0], sampled[1])
    assert "R1" in chat.decode(trained(first))
    assert contexts[1] == chat.prompt(messages[:3], TOOLS) == second.token_ids[: len(contexts[1])]
    text = chat.decode(second.token_ids)
    assert ("R1" in text, "A1" in text, "U1" in text, "U2" in text) == (False, True, True, True)


@pytest.mark.parametrize("name", ["llama3", "smollm2"])
def test_a_template_that_keeps_thinking_goes_on_in_one_segment(name: str, chats: dict[str, Chat]) -> None:
    _, _, segments, _, _ = play(chats[name], [(THOUGHT, [{"role": "user", "content": "U2"}]), ("A2", tool("ok"))])
    assert len(segments) == 1


def test_a_completion_that_is_only_a_closing_tag_round_trips(template: Chat) -> None:
    _, messages, segments, contexts, sampled = play(template, [("</think>", tool("seen")), ("A2", tool("ok"))])
    first, last = segments[0], segments[-1]
    assert first.token_ids[len(contexts[0]) : len(contexts[0]) + len(sampled[0])] == sampled[0]
    assert trained(first)[: len(sampled[0])] == sampled[0]
    assert trained(last)[-len(sampled[1]) :] == sampled[1]
    # Where the template drops the tag, the second turn is sampled from what it renders without it.
    joined = len(segments) == 1
    assert joined or contexts[1] == template.prompt(messages[:3], TOOLS)
    assert joined == ("</think>" in template.text(messages[:3], TOOLS))


def test_a_message_that_the_template_trims_begins_a_segment(chats: dict[str, Chat]) -> None:
    turns = [("words \n", tool("seen")), ("A2", tool("ok"))]
    _, messages, segments, contexts, sampled = play(chats["llama3"], turns)
    assert [trained(segment) for segment in segments] == sampled
    assert contexts[1] == chats["llama3"].prompt(messages[:3], TOOLS)
    assert len(play(chats["smollm2"], turns)[2]) == 1


def test_showing_other_messages_before_sampling_replaces_the_last(template: Chat) -> None:
    conversation = Conversation(template, TOOLS)
    conversation.show([USER])
    conversation.said(template.completion("A1"))
    base = [USER, {"role": "assistant", "content": "A1"}]
    conversation.show([*base, *tool("seen")])
    conversation.show([*base, *tool("seen", "and more")])
    assert conversation.ids == template.prompt([*base, *tool("seen", "and more")], TOOLS)
