"""One session turn by turn: what is trained, what is observed, how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.chat import Chat
from tasks.rollout.agent import CUT
from tasks.rollout.segments import SegmentWriter
from tasks.rollout.toolformats import FORMATS
from tasks.training.packing import micro_batches, pack, sampled_positions

SUBMIT = '<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>'
LOOK = '<tool_call>\n{"name": "look", "arguments": {"n": 3}}\n</tool_call>'
VERSION = "policy-00000"
NO_CALL = FORMATS["hermes"].no_call
Drive = Callable[..., Any]


def test_a_session_to_its_submission(drive: Drive) -> None:
    d = drive()
    d.say(LOOK)
    d.say(SUBMIT)
    t = d.finish().trajectory
    assert (t.id, t.status, t.submitted, t.outcome) == ("run/00007/p/1", "completed", True, None)
    assert [turn.observation for turn in t.turns] == ["line line line ", "submitted"]
    assert [call.name for call in d.session.called] == ["look", "submit"]
    assert (t.malformed_calls, t.tool_errors, t.policy_digest) == (0, 0, "d" * 8)


def test_the_mask_is_one_exactly_on_sampled_tokens_with_their_logprobs(drive: Drive) -> None:
    d = drive()
    for text in (LOOK, "words", SUBMIT):
        d.say(text)
    rollout = d.finish()
    (segment,) = rollout.segments
    ids = [token for ids, _ in d.sampled for token in ids]
    logprobs = [value for _, values in d.sampled for value in values]
    trained = [i for i, mask in enumerate(segment.loss_mask) if mask]
    assert [segment.token_ids[i] for i in trained] == ids
    assert [segment.rollout_logprobs[i] for i in trained] == logprobs
    assert sum(segment.loss_mask) == len(ids) == rollout.trajectory.sampled_tokens
    assert len(ids) < trained[-1] - trained[0] + 1, "a response's length is the mask's sum, not its span"
    assert all(v == 0.0 for v, mask in zip(segment.rollout_logprobs, segment.loss_mask, strict=True) if not mask)
    assert sorted(set(segment.turn_index)) == [0, 1, 2]
    assert [sum(m for m, t in zip(segment.loss_mask, segment.turn_index, strict=True) if t == i) for i in range(3)] == [
        len(ids) for ids, _ in d.sampled
    ]


def test_the_tokens_are_what_the_template_renders_for_the_conversation(drive: Drive, chat: Chat) -> None:
    d = drive()
    d.say(LOOK)
    d.say("words")
    request = d.say(SUBMIT)
    messages: list[dict[str, Any]] = d.session.messages()
    for text, observed in ((LOOK, "line line line "), ("words", NO_CALL)):
        messages += [{"role": "assistant", "content": text}, {"role": "tool", "content": observed}]
    assert request.token_ids == chat.prompt(messages)


@pytest.mark.parametrize(
    ("text", "observed", "malformed", "tool_errors"),
    [
        ("words", NO_CALL, 1, 0),
        ("</think>", NO_CALL, 1, 0),
        ("<tool_call>{oops</tool_call>", "error: the call is not JSON", 1, 0),
        ('<tool_call>{"name": "fly", "arguments": {}}</tool_call>', "error: no tool fly", 0, 1),
        (LOOK + "<tool_call>1</tool_call>", "line line line \nerror: the call is not a JSON object", 1, 0),
    ],
)
def test_what_the_agent_did_wrong_comes_back_as_an_observation_and_a_count(
    drive: Drive, text: str, observed: str, malformed: int, tool_errors: int
) -> None:
    d = drive()
    d.say(text)
    d.say(SUBMIT)
    rollout = d.finish()
    assert rollout.trajectory.turns[0].observation.startswith(observed)
    assert (rollout.trajectory.malformed_calls, rollout.trajectory.tool_errors) == (malformed, tool_errors)
    assert rollout.trajectory.turns[0].tool_failed is bool(tool_errors)
    assert rollout.trajectory.status == "completed"


def test_a_lone_closing_tag_is_kept_as_it_was_sampled(drive: Drive, chat: Chat) -> None:
    d = drive()
    d.say("</think>")
    request = d.say(SUBMIT)
    rollout = d.finish()
    assert rollout.trajectory.turns[0].completion == "</think>"
    ids = d.sampled[0][0]
    start = len(rollout.trajectory.prompt_ids)
    assert request.token_ids[start : start + len(ids)] == ids
    assert len(rollout.segments) == 1


def test_nothing_is_called_after_the_call_that_ends_the_session(drive: Drive) -> None:
    d = drive(max_turn_tokens=100)
    d.say(LOOK + SUBMIT + LOOK)
    assert d.agent.status == "completed"
    assert [call.name for call in d.session.called] == ["look", "submit"]


def test_turns_run_out(drive: Drive) -> None:
    d = drive(turns=2)
    d.say(LOOK)
    assert d.agent.status is None
    d.say(LOOK)
    assert d.finish().trajectory.status == "out_of_turns"


def test_a_turn_cut_by_its_own_cap_runs_nothing_and_is_closed_by_the_template(drive: Drive, chat: Chat) -> None:
    d = drive(max_turn_tokens=30)
    d.say(SUBMIT + "and more words", cut_at=len(chat.completion(SUBMIT)))
    request = d.say(SUBMIT)
    t = d.finish().trajectory
    assert t.turns[0].finish_reason == "length"
    assert (t.turns[0].calls, t.turns[0].observation, t.malformed_calls) == ((), CUT, 1)
    ids = [*t.prompt_ids, *d.sampled[0][0], *chat.observation([CUT], closed=False)]
    assert request.token_ids == ids
    assert ids[len(t.prompt_ids) + len(d.sampled[0][0])] in chat.stop_ids
    assert [call.name for call in d.session.called] == ["submit"]


def test_length_by_the_total_budget_ends_the_session(drive: Drive, chat: Chat) -> None:
    n = len(chat.completion(LOOK))
    d = drive(tokens=n + 5)
    assert d.say(LOOK).max_tokens == n + 5
    assert d.say(LOOK, cut_at=5).max_tokens == 5
    rollout = d.finish()
    assert (rollout.trajectory.status, rollout.trajectory.sampled_tokens) == ("out_of_tokens", n + 5)
    assert rollout.trajectory.turns[-1].finish_reason == "length"
    assert len(d.session.called) == 1
    assert sum(rollout.segments[0].loss_mask) == n + 5


def test_a_last_turn_that_just_fits_the_budget_is_run(drive: Drive, chat: Chat) -> None:
    d = drive(tokens=len(chat.completion(LOOK)))
    d.say(LOOK)
    assert d.finish().trajectory.status == "out_of_tokens"
    assert len(d.session.called) == 1
    e = drive(tokens=len(chat.completion(SUBMIT)))
    e.say(SUBMIT)
    assert e.finish().trajectory.status == "completed"


def test_the_budget_is_one_over_all_turns(drive: Drive, chat: Chat) -> None:
    n = len(chat.completion(LOOK))
    d = drive(turns=9, tokens=3 * n - 1, max_turn_tokens=n + 1)
    asked = [d.say(LOOK).max_tokens, d.say(LOOK).max_tokens, d.say(LOOK, cut_at=n - 1).max_tokens]
    assert asked == [n + 1, n + 1, n - 1]
    assert d.finish().trajectory.sampled_tokens == 3 * n - 1


def test_an_action_near_the_turns_cap_is_trained_to_its_last_token() -> None:
    # Three turns of 6,000 tokens under a cap of 8,192 a turn: the cap is each turn's, and the whole is never cut.
    writer, context = SegmentWriter(), [1]
    for turn in range(3):
        writer.prompt(context, turn)
        writer.sampled([10 + turn] * 6000, [-0.5] * 6000, turn, VERSION)
        context = [*context, *[10 + turn] * 6000, 2]
    (segment,) = writer.build("t")
    assert [segment.token_ids.count(10 + turn) for turn in range(3)] == [6000] * 3
    assert len(sampled_positions(segment)) == pack([segment]).counts[0] == 18_000
    assert pack([segment]).targets[-6000:].tolist() == [12] * 6000
    assert micro_batches([len(segment.token_ids)], 8192) == [[0]], "a row over the limit is computed whole"


def test_a_session_ended_from_outside_keeps_what_it_has(drive: Drive) -> None:
    d = drive()
    with pytest.raises(RuntimeError, match="has not ended"):
        d.agent.finish()
    d.say(LOOK)
    d.agent.request()
    d.agent.end("engine_error", "lost")
    rollout = d.finish()
    assert (rollout.trajectory.status, rollout.trajectory.detail) == ("engine_error", "lost")
    # The observation that was never answered is no part of the segment.
    assert rollout.segments[0].loss_mask[-1] == 1


def test_a_response_is_as_long_as_its_mask_says() -> None:
    writer = SegmentWriter()
    writer.prompt([1, 2, 3], 0)
    writer.sampled([4, 5, 6, 7], [-0.5] * 4, 0, VERSION)
    writer.prompt(list(range(1, 11)), 1)
    writer.sampled([11, 12, 13, 14, 15], [-0.25] * 5, 1, VERSION)
    (segment,) = writer.build("t")
    assert "".join(map(str, segment.loss_mask)) == "0001111" + "000" + "11111"
    assert sum(segment.loss_mask) == len(sampled_positions(segment)) == pack([segment]).counts[0] == 9
    assert segment.rollout_logprobs == [0] * 3 + [-0.5] * 4 + [0] * 3 + [-0.25] * 5


TURNS = st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(0, 5)), min_size=1, max_size=6)


@settings(deadline=None)
@given(TURNS)
def test_what_is_trained_is_what_was_sampled_whatever_the_turns(turns: list[tuple[int, bool, int]]) -> None:
    writer, context, sampled = SegmentWriter(), [], []
    for index, (inserted, rewrite, count) in enumerate(turns):
        context = [*([index] if rewrite else context), *[7] * inserted]
        writer.prompt(context, index)
        ids, logprobs = [100 * index + i for i in range(count)], [-0.1 * (i + 1) for i in range(count)]
        writer.sampled(ids, logprobs, index, VERSION)
        context = context + ids
        sampled += list(zip(ids, logprobs, strict=True))
    segments = writer.build("t")
    trained = [(s.token_ids[t], s.rollout_logprobs[t]) for s in segments for t in sampled_positions(s)]
    assert trained == sampled
    for segment in segments:
        inserted_logprobs = [p for p, m in zip(segment.rollout_logprobs, segment.loss_mask, strict=True) if not m]
        assert set(inserted_logprobs) == {0.0}
        assert segment.loss_mask[-1] == 1


def test_a_segment_takes_no_token_without_its_logprob() -> None:
    writer = SegmentWriter()
    writer.prompt([1, 2], 0)
    with pytest.raises(ValueError, match="2 sampled tokens have 1 log-prob"):
        writer.sampled([3, 4], [-1.0], 0, VERSION)
    assert writer.build("t") == ()


@pytest.mark.parametrize(
    ("said", "heard", "status"),
    [
        ("It is 4.", [("It is 4.", [])], "completed"),
        ('Look:<tool_call>{"name": "look"}</tool_call>', [("Look:", ["look"])], None),
        ('<tool_call>{"name": </tool_call>', [], None),
    ],
)
def test_a_listener_hears_messages_that_were_read_and_takes_one_without_call_as_the_answer(
    drive: Any, playground: Any, said: str, heard: list[tuple[str, list[str]]], status: str | None
) -> None:
    class Listening(playground):  # type: ignore[misc, valid-type]
        def hear(self, content: str, calls: Any) -> bool:
            told.append((content, [call.name for call in calls]))
            return not calls

    told: list[tuple[str, list[str]]] = []
    driver = drive(kind=Listening)
    driver.say("It is", cut_at=1)  # a message that was cut is not heard
    driver.say(said)
    assert (told, driver.agent.status) == (heard, status)
    if status:
        trajectory = driver.finish().trajectory
        assert (trajectory.submitted, trajectory.turns[-1].call_errors) == (True, ())


def test_each_call_has_its_part_of_the_observation(drive: Drive) -> None:
    driver = drive(turns=1, max_turn_tokens=100)
    asked = [{"name": "look", "arguments": {"n": 2}}, {"name": "fly", "arguments": {}}]
    driver.say("".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in asked) + "<tool_call>{</tool_call>")
    (turn,) = driver.finish().trajectory.turns
    ends = [0, *(answer.end + 1 for answer in turn.answers)]
    parts = [turn.observation[start : answer.end] for start, answer in zip(ends, turn.answers, strict=False)]
    assert parts == ["line line ", "error: no tool fly"]
    assert [answer.failed for answer in turn.answers] == [False, True]
    assert turn.observation[ends[-1] :].startswith("error: ") and len(turn.call_errors) == 1
