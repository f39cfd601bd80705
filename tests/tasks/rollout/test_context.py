"""Context policies: what the model is shown, and that every segment is what was sampled after what was shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from data_contracts.errors import UserError
from models.chat import Chat
from tasks.rollout.context import ContextConfig, check_window, context_policy
from tasks.rollout.context.clip import cut_middle
from tasks.rollout.context.compact import ASK, RESTATED

Drive = Callable[..., Any]


def call(name: str, /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


SUBMIT = call("submit")
WIDE = {"turns": 30, "tokens": 5000, "max_turn_tokens": 400}


def config(policy: str, **parameters: Any) -> ContextConfig:
    return ContextConfig(policy=policy, **parameters)


# every policy: the segments


def trained(segment: Any) -> list[tuple[int, float]]:
    columns = zip(segment.token_ids, segment.rollout_logprobs, segment.loss_mask, strict=True)
    return [(token, logprob) for token, logprob, mask in columns if mask]


def replay(driver: Any, prompt: str) -> Any:
    """Check each segment against the contexts that the engine was given; returns the rollout."""
    rollout = driver.finish()
    turns = rollout.trajectory.turns
    total = sum(len(ids) for ids, _ in driver.sampled)
    assert sum(sum(s.loss_mask) for s in rollout.segments) == rollout.trajectory.sampled_tokens == total
    for turn, context, (ids, logprobs) in zip(turns, driver.contexts, driver.sampled, strict=True):
        segment = rollout.segments[turn.segment]
        start, end = len(context), len(context) + len(ids)
        assert segment.token_ids[:start] == context, "sampled from exactly the tokens before it"
        assert segment.token_ids[start:end] == ids
        assert segment.loss_mask[start:end] == [1] * len(ids)
        assert segment.rollout_logprobs[start:end] == logprobs
        assert set(segment.turn_index[start:end]) == {turn.index}
        assert sum(turn.origins.values()) == turn.prompt_tokens == start
        assert turn.prompt_kept
    for segment in rollout.segments:
        masked = zip(segment.rollout_logprobs, segment.loss_mask, strict=True)
        assert {logprob for logprob, mask in masked if not mask} <= {0.0}
        assert prompt in driver.chat.decode(segment.token_ids)
    return rollout


MESSAGES = st.sampled_from(
    [
        call("look", n=2),
        call("look", n=90),
        call("look", n=3) + call("look", n=60),
        call("note", key="plan", text="read, then edit"),
        call("note", key="plan", text="") + call("look", n=1),
        call("note", key="found", text="line 3") + call("look", n=70),
        call("read_artifact", name="artifact-1", start=1, count=5),
        "<think>\nR\n</think>\n\n" + call("look", n=4),
        "</think>",
        "words \n",
        "<tool_call>{broken</tool_call>",
        "\u4e2d\u6587 \u00e9 <|im_start|>",
    ]
)
SCRIPT = st.lists(st.tuples(MESSAGES, st.none() | st.integers(1, 12)), min_size=1, max_size=12)
POLICIES = [
    config("keep"),
    config("clip", observation_tokens=40),
    config("externalise", observation_tokens=48, preview_tokens=8),
    config("compact", compact_at=120, summary_tokens=40, observation_tokens=60),
    config("notes"),
    config("notes", notes_within=60),
]


@pytest.mark.parametrize("name", ["qwen3", "llama3", "smollm2"])
@pytest.mark.parametrize("context", POLICIES, ids=lambda c: f"{c.policy}-{c.notes_within}")
def test_every_segment_is_what_was_sampled_after_what_was_shown(
    context: ContextConfig, name: str, chats: dict[str, Chat], drive: Drive
) -> None:
    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(SCRIPT)
    def check(script: list[tuple[str, int | None]]) -> None:
        d = drive(turns=9, tokens=700, max_turn_tokens=120, with_chat=chats[name], context=context)
        for text, cut_at in script:
            if d.agent.status is not None:
                break
            room = d.agent.request().max_tokens
            size = len(d.chat.completion(text))
            cut = min(room, size - 1 if cut_at is None and size > room else cut_at or size)
            d.say(text, cut_at=cut if cut < size else None)
        if d.agent.status is None:
            d.agent.end("cancelled", "the script is over")
        rollout = replay(d, d.session.problem.prompt)
        assert rollout.trajectory.sampled_tokens <= 700
        assert sum(turn.purpose == "work" for turn in rollout.trajectory.turns) <= 9

    check()


def test_without_a_policy_the_context_only_grows(drive: Drive) -> None:
    d = drive(**WIDE)
    for n in (50, 3, 80):
        d.say(call("look", n=n))
    d.say(SUBMIT)
    rollout = replay(d, "fix p")
    assert len(rollout.segments) == 1
    assert rollout.trajectory.turns[2].observation == "line " * 80
    last = rollout.trajectory.turns[-1].origins
    assert last["policy"] == 0
    assert last["prompt"] == len(rollout.trajectory.prompt_ids)
    assert last["own"] == sum(len(ids) for ids, _ in d.sampled[:3])


# clip


@pytest.mark.parametrize("text", ["word " * 400, "\u4e2d\u6587\u00e9" * 200, "a" * 2000, "x\n" * 500])
@pytest.mark.parametrize("most", [40, 64, 301])
def test_a_cut_text_fits_and_says_how_much_is_gone(chat: Chat, text: str, most: int) -> None:
    ids = chat.ids(text)
    clipped = cut_middle(text, most, chat)
    assert len(chat.ids(clipped)) <= most < len(ids)
    head, _, tail = clipped.partition("\n... ")
    count = int(tail.split(" ", 1)[0])
    tail = tail.split(" left out ...\n", 1)[1]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) > 0 < len(tail)
    kept = len(ids) - count
    assert 0 <= kept - len(chat.ids(head)) - len(chat.ids(tail)) <= 8, "but for characters that were cut apart"
    assert most - kept <= 60, "the room is used"


def test_a_text_that_fits_is_left_alone_and_one_without_room_is_its_notice(chat: Chat) -> None:
    assert cut_middle("some words", len(chat.ids("some words")), chat) == "some words"
    assert cut_middle("word " * 300, 3, chat) == f"... {len(chat.ids('word ' * 300))} tokens left out ..."


def test_the_results_of_a_turn_share_the_tokens(drive: Drive, chat: Chat) -> None:
    d = drive(**WIDE, context=config("clip", observation_tokens=100))
    d.say(call("look", n=5) + call("look", n=300) + call("look", n=300))
    d.say(SUBMIT)
    rollout = replay(d, "fix p")
    seen = rollout.trajectory.turns[0].observation
    assert seen.startswith("line " * 5 + "\n")
    assert seen.count("tokens left out") == 2
    assert len(chat.ids(seen)) <= 105
    assert len(rollout.segments) == 1
    assert seen.split("\n")[0] in d.chat.decode(d.contexts[1])


# externalise


def artifact_session(drive: Drive) -> Any:
    return drive(**WIDE, context=config("externalise", observation_tokens=60, preview_tokens=10))


def test_a_large_result_stays_outside_and_is_read_on_demand(drive: Drive, chat: Chat) -> None:
    d = artifact_session(drive)
    d.say(call("look", n=600))
    shown = d.agent.request().token_ids[len(d.contexts[0]) :]
    assert len(shown) < 200, "the handle and a preview, not the 600 tokens"
    d.say(call("read_artifact", name="artifact-1", start=2, count=9))
    d.say(SUBMIT)
    rollout = replay(d, "fix p")
    first, second, _ = rollout.trajectory.turns
    whole = "line " * 600
    size = f"{len(chat.ids(whole))} tokens in 15 lines"
    assert first.observation.startswith(f"[artifact-1: {size}, kept outside; read_artifact shows them. Lines 1 to 1:]")
    assert first.observation.endswith("\n" + whole[:200])
    assert second.observation == f"[artifact-1: lines 2 to 2 of 15]\n{whole[200:400]}"
    assert [made.name for made in d.session.called] == ["look", "submit"], "the environment never hears of artifacts"
    assert rollout.trajectory.tool_errors == 0
    assert len(rollout.segments) == 1
    assert rollout.trajectory.turns[1].origins["policy"] == len(chat.ids(first.observation))


def test_every_part_of_an_artifact_can_be_reached(chat: Chat) -> None:
    policy: Any = context_policy(config("externalise", observation_tokens=60, preview_tokens=10), [], chat)
    text = "\n".join(["a" * 730, "", "\u4e2d" * 300, "end"])
    policy.admit([text])
    (lines,) = policy.artifacts.values()
    reached, at = [], 1
    while at <= len(lines):
        result = policy.call(make_call(name="artifact-1", start=at, count=50))
        head, _, body = result.text.partition("\n")
        last = int(head.split(" to ")[1].split(" of ")[0])
        assert last == at or len(chat.ids(body)) <= 60
        reached += body.split("\n")
        at = last + 1
    assert reached == lines
    assert "".join(reached) == text.replace("\n", "")


def make_call(**arguments: Any) -> Any:
    from data_contracts.records import ToolCall

    return ToolCall(name="read_artifact", arguments=arguments)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"name": "artifact-9"}, "no artifact 'artifact-9': there are artifact-1"),
        ({"name": "artifact-1", "start": 6}, "artifact-1 has 5 lines"),
        ({"name": "artifact-1", "start": 0}, "start: input should be greater than or equal to 1"),
        ({"name": "artifact-1", "start": "1"}, "start: input should be a valid integer"),
        ({}, "name: field required"),
        ({"name": "artifact-1", "line": 3}, "line: extra inputs are not permitted"),
    ],
)
def test_a_wrong_reading_is_an_error_observation(drive: Drive, arguments: dict[str, Any], why: str) -> None:
    d = artifact_session(drive)
    d.say(call("look", n=200))
    d.say(call("read_artifact", **arguments))
    assert d.agent.status is None
    d.say(SUBMIT)
    rollout = replay(d, "fix p")
    assert why in rollout.trajectory.turns[1].observation
    assert (rollout.trajectory.turns[1].tool_failed, rollout.trajectory.tool_errors) == (True, 1)


def test_calls_of_both_kinds_in_one_message_are_answered_in_order(drive: Drive) -> None:
    d = artifact_session(drive)
    d.say(call("look", n=200))
    d.say(call("look", n=1) + call("read_artifact", name="artifact-1") + SUBMIT + call("read_artifact", name="no"))
    rollout = d.finish()
    seen = rollout.trajectory.turns[1].observation.split("\n")
    assert (seen[0], seen[1][:13], seen[-1]) == ("line ", "[artifact-1: ", "submitted")
    assert rollout.trajectory.tool_errors == 0, "what comes after the end is not run"


# compact


def compacting(drive: Drive, chat: Chat, **options: Any) -> Any:
    settings = config("compact", compact_at=130, summary_tokens=60, observation_tokens=100)
    return drive(**(WIDE | options), context=settings)


def test_the_summary_is_trained_and_the_prompt_restated_word_for_word(drive: Drive, chat: Chat) -> None:
    d = compacting(drive, chat)
    d.say(call("look", n=90))
    assert d.say("Read line 1. " + SUBMIT).max_tokens == 60
    d.say(call("look", n=1))
    d.say(SUBMIT)
    rollout = replay(d, "fix p")
    first, second = rollout.segments
    turns = rollout.trajectory.turns
    assert [(turn.purpose, turn.segment) for turn in turns] == [
        ("work", 0), ("summary", 0), ("work", 1), ("work", 1)
    ]  # fmt: skip
    summary = d.sampled[1]
    assert trained(first)[-len(summary[0]) :] == list(zip(*summary, strict=True))
    assert ASK in chat.decode(first.token_ids)
    prompt = [{"role": "user", "content": f"fix p\n\n{RESTATED}\nRead line 1."}]
    assert d.contexts[2] == chat.prompt(prompt) == second.token_ids[: len(d.contexts[2])]
    assert (turns[1].calls, turns[1].call_errors, turns[1].observation) == ((), (), "")
    assert [made.name for made in d.session.called] == ["look", "look", "submit"], "a summary runs nothing"
    assert rollout.trajectory.malformed_calls == 0
    assert turns[2].origins["policy"] == len(chat.ids(f"{RESTATED}\nRead line 1."))


def test_a_summary_is_no_turn_of_the_problem_but_counts_its_tokens(drive: Drive, chat: Chat) -> None:
    d = compacting(drive, chat, turns=2)
    d.say(call("look", n=90))
    d.say("Summary.")
    assert d.agent.status is None
    d.say(call("look", n=90))
    rollout = replay(d, "fix p")
    assert rollout.trajectory.status == "out_of_turns"
    assert rollout.trajectory.sampled_tokens == sum(len(ids) for ids, _ in d.sampled)
    assert len(rollout.trajectory.turns) == 3


def test_over_three_cycles_the_total_stays_within_the_budget(drive: Drive, chat: Chat) -> None:
    d, budget = compacting(drive, chat, tokens=600), 600
    while d.agent.status is None:
        request, left = d.agent.request(), budget - sum(len(ids) for ids, _ in d.sampled)
        assert request.max_tokens == min(left, 60 if ASK in chat.decode(request.token_ids) else 400)
        text = "S " * 20 if request.max_tokens <= 60 else call("look", n=90) + "w " * 40
        size = len(chat.completion(text))
        d.say(text, cut_at=request.max_tokens if size > request.max_tokens else None)
    rollout = replay(d, "fix p")
    assert len(rollout.segments) >= 4
    assert rollout.trajectory.status == "out_of_tokens"
    assert rollout.trajectory.sampled_tokens == budget


def test_thinking_is_no_part_of_the_summary(drive: Drive, chats: dict[str, Chat]) -> None:
    d = compacting(drive, chats["qwen3"], with_chat=chats["qwen3"])
    d.say("<think>\nR1\n</think>\n\n" + call("look", n=90))
    d.say("<think>\nR2\n</think>\n\nDone: line 1.")
    d.say(SUBMIT)
    rollout = replay(d, "fix p")
    # The question is the user's, for which this template strips the thinking before it: a segment of its own.
    assert [turn.segment for turn in rollout.trajectory.turns] == [0, 1, 2]
    texts = [d.chat.decode(context) for context in d.contexts]
    assert ("R1" in texts[1], "R2" in texts[2], "Done: line 1." in texts[2]) == (False, False, True)
    assert "R1" in d.chat.decode([token for token, _ in trained(rollout.segments[0])])


def test_a_mark_that_leaves_no_room_is_refused(drive: Drive, chat: Chat) -> None:
    with pytest.raises(UserError, match=r"compact_at = 64: a prompt and its summary have up to \d+ .* leaves no room"):
        drive(context=config("compact", compact_at=64, summary_tokens=60))
    settings = config("compact", compact_at=300, summary_tokens=60, observation_tokens=100)
    beyond = 50 + 100 + len(chat.ids(ASK)) + 60
    check_window(settings, 50, chat, 300 + beyond)
    with pytest.raises(UserError, match=f"compact_at = 300: .* context has {299 + beyond}: set compact_at to 299 or"):
        check_window(settings, 50, chat, 299 + beyond)


# notes


def noting(drive: Drive, **parameters: Any) -> Any:
    return drive(**WIDE, context=config("notes", **parameters))


def test_notes_are_last_in_the_context_with_the_latest_text_of_each(drive: Drive) -> None:
    d = noting(drive)
    d.say(call("note", key="plan", text="read") + call("note", key="found", text="line 3"))
    d.say(call("look", n=2))
    d.say(call("note", key="plan", text="edit"))
    d.say(SUBMIT)
    rollout = replay(d, "fix p")
    texts = [d.chat.decode(context) for context in d.contexts]
    for text, plan in zip(texts[1:], ("read", "read", "edit"), strict=True):
        assert text.count("Your notes:") == 1
        assert f"Your notes:\nplan: {plan}\nfound: line 3" in text.split("</tool_response>")[-2]
    assert "Your notes:" not in texts[0]
    assert rollout.trajectory.turns[0].observation == "noted\nnoted"
    assert d.session.called[0].name == "look"


def test_without_notes_nothing_is_rewritten(drive: Drive) -> None:
    d = noting(drive)
    d.say(call("look", n=2))
    d.say("words")
    d.say(SUBMIT)
    assert len(replay(d, "fix p").segments) == 1


def test_a_segment_begins_exactly_where_the_notes_change_or_move(drive: Drive) -> None:
    d = noting(drive, notes_within=150)
    script = [
        (call("note", key="a", text="1"), 0),  # the first notes only extend the context
        (call("look", n=1), 0),
        (call("note", key="a", text="1"), 0),  # the same again: no change
        (call("note", key="a", text="2"), 0),  # sampled before the change that it makes
        (call("look", n=160), 1),
        (call("look", n=1), 2),  # more than 150 tokens came after the notes: they move
        (call("note", key="a", text=""), 2),
        (SUBMIT, 3),
    ]
    for text, _ in script:
        d.say(text)
    rollout = replay(d, "fix p")
    assert [turn.segment for turn in rollout.trajectory.turns] == [segment for _, segment in script]
    assert "Your notes" not in d.chat.decode(d.contexts[-1])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"key": "k", "text": "word " * 60}, "all notes together would have"),
        ({"key": "", "text": "t"}, "key: string should have at least 1"),
        ({"key": "k"}, "text: field required"),
        ({"key": "k", "text": 3}, "text: input should be a valid string"),
    ],
)
def test_a_note_that_can_not_be_kept_changes_nothing(drive: Drive, arguments: dict[str, Any], why: str) -> None:
    d = noting(drive, notes_tokens=40)
    d.say(call("note", key="k", text="old"))
    d.say(call("note", **arguments))
    d.say(SUBMIT)
    rollout = replay(d, "fix p")
    assert why in rollout.trajectory.turns[1].observation
    assert "k: old" in d.chat.decode(d.contexts[2])
    assert rollout.trajectory.tool_errors == 1


# configuration


def test_parameters_of_another_policy_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"rollout.context.preview_tokens is for the policy 'externalise', not"):
        config("clip", preview_tokens=3)
    with pytest.raises(ValidationError, match=r"observation_tokens is for the policy 'clip' or 'externalise' or 'comp"):
        config("notes", observation_tokens=100)
    kept = config("compact", compact_at=900, observation_tokens=100)
    assert ContextConfig.model_validate_json(kept.model_dump_json()) == kept


def test_a_tool_name_that_the_environment_has_is_refused(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = [{"type": "function", "function": {"name": "note", "parameters": {}}}]
    played = type(drive().session)
    monkeypatch.setattr(played, "tools", lambda self: tools)
    with pytest.raises(UserError, match="a tool 'note' too: choose another rollout"):
        drive(context=config("notes"))
    assert drive(context=config("externalise")).agent.status is None
