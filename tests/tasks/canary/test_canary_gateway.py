"""The gateway over real HTTP, with the real engine where sampling matters."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from models.chat import Chat
from tasks.canary.audit import read_audit
from tasks.canary.gateway import Gateway
from tasks.canary.routing import Served
from tasks.rollout.engine import EngineError
from tasks.rollout.slot_engine import SlotEngine

Open = Callable[..., Gateway]
Scripted = Callable[..., Any]
HTTP = httpx.Client(timeout=60, trust_env=False)
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "edit", "parameters": {"type": "object", "properties": {}}}}
]
EDIT = '<tool_call>\n{"name": "edit", "arguments": {"line": 2, "text": "x"}}\n</tool_call>'


def client(gateway: Gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)


def ask(gateway: Gateway, session: str, *messages: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"messages": messages or [{"role": "user", "content": "hi"}], "max_tokens": 8} | fields
    return HTTP.post(f"{gateway.url}/v1/chat/completions", json=body, headers={"x-session-id": session})


def on_candidate(share: float, session: str) -> bool:
    return int(hashlib.sha256(session.encode()).hexdigest(), 16) / 2**256 < share


def test_the_openai_client_works_unchanged(open_gateway: Open, slot_engine: SlotEngine, chat: Chat) -> None:
    gateway = open_gateway(slot_engine)
    api = client(gateway)
    raw = api.chat.completions.with_raw_response.create(
        model="champion", messages=[{"role": "user", "content": "add(1, 2)"}], tools=TOOLS, max_tokens=6, seed=3
    )
    answer = raw.parse()
    assert raw.headers["x-ratchet-release"] == "release-1"
    assert raw.headers["x-ratchet-digest"] == answer.system_fingerprint == "digest-1"
    assert len(raw.headers["x-session-id"]) == 32
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(chat.prompt([{"role": "user", "content": "add(1, 2)"}], TOOLS))
    assert 1 <= answer.usage.completion_tokens <= 6
    assert answer.choices[0].message.role == "assistant"
    assert [model.id for model in api.models.list()] == ["champion", "release-1"]
    health = HTTP.get(f"{gateway.url}/health").json()
    assert (health["status"], health["sessions"], health["champion"]) == ("ok", 1, "release-1")


def test_tool_calls_come_in_openais_form_and_go_back_as_they_were_sampled(
    open_gateway: Open, chat: Chat, scripted: Scripted
) -> None:
    said = ["Let me see. " + EDIT, "no call"]
    engine = scripted(lambda version, session, turn: said[turn])
    api = client(open_gateway(engine))
    messages: list[Any] = [{"role": "user", "content": "repair"}]
    headers = {"x-session-id": "s"}
    first = api.chat.completions.create(model="champion", messages=messages, tools=TOOLS, extra_headers=headers)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.content is not None and message.content.strip() == "Let me see."
    assert message.tool_calls is not None
    call = message.tool_calls[0]
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("edit", '{"line": 2, "text": "x"}')
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "ok"}]
    second = api.chat.completions.create(model="champion", messages=messages, tools=TOOLS, extra_headers=headers)
    assert second.choices[0].message.content == "no call" and second.choices[0].finish_reason == "stop"
    exact = [*chat.prompt(messages[:1], TOOLS), *chat.completion(said[0]), *chat.observation(["ok"], closed=True)]
    assert engine.contexts[1] == exact


def test_malformed_calls_are_told_and_their_text_is_kept(open_gateway: Open, scripted: Scripted) -> None:
    broken = '<tool_call>\n{"name": edit}\n</tool_call>'
    engine = scripted(lambda version, session, turn: broken)
    message = ask(open_gateway(engine), "s", max_tokens=200).json()["choices"][0]["message"]
    assert message["content"] == broken and "tool_calls" not in message
    assert len(message["call_errors"]) == 1


def test_a_second_turn_extends_the_very_tokens_that_were_sampled(
    open_gateway: Open, slot_engine: SlotEngine, chat: Chat
) -> None:
    """Random text need not tokenise back to what was sampled; and the engine's cache is hit."""
    gateway = open_gateway(slot_engine)
    first = {"role": "user", "content": "def add(a, b):"}
    for number in range(8):
        one = ask(gateway, f"s{number}", first, max_tokens=24, seed=number).json()
        usage, stopped = one["usage"], one["choices"][0]["finish_reason"] != "length"
        again = [first, one["choices"][0]["message"], {"role": "tool", "content": "ok"}]
        two = ask(gateway, f"s{number}", *again, max_tokens=4).json()["usage"]
        inserted = len(chat.observation(["ok"], closed=stopped))
        assert two["prompt_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] + inserted
        assert two["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"]


def test_an_edited_history_or_a_new_question_is_rendered_afresh(
    open_gateway: Open, chat: Chat, scripted: Scripted
) -> None:
    engine = scripted(lambda version, session, turn: f"answer {turn}")
    gateway = open_gateway(engine)
    question, edited = {"role": "user", "content": "one"}, {"role": "user", "content": "two"}
    answer = ask(gateway, "s", question, max_tokens=64).json()["choices"][0]["message"]
    assert answer["content"] == "answer 0"
    for history in ([edited, answer, {"role": "tool", "content": "ok"}], [question, answer, edited]):
        assert ask(gateway, "s", *history, max_tokens=64).status_code == 200
        assert engine.contexts[-1] == chat.render_history(history, [])


def test_sessions_stick_to_a_release_by_the_hash_of_their_id(
    open_gateway: Open, slot_engine: SlotEngine, candidate: Served
) -> None:
    gateway = open_gateway(slot_engine)
    gateway.begin(candidate, 0.5, stage=1)
    names = [f"user-{number}" for number in range(24)]
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda name: ask(gateway, name), names))
    for name, answer in zip(names, answers, strict=True):
        expected = ("release-2", "digest-2") if on_candidate(0.5, name) else ("release-1", "digest-1")
        assert (answer.headers["x-ratchet-release"], answer.headers["x-ratchet-digest"]) == expected
        assert answer.headers["x-ratchet-stage"] == "1" and answer.headers["x-session-id"] == name
    assert 4 <= sum(on_candidate(0.5, name) for name in names) <= 20


def test_a_session_in_flight_keeps_its_release_when_the_share_changes(
    open_gateway: Open, slot_engine: SlotEngine, candidate: Served
) -> None:
    gateway = open_gateway(slot_engine)
    gateway.begin(candidate, 1.0)
    assert ask(gateway, "old").headers["x-ratchet-release"] == "release-2"
    gateway.routes.end()
    assert ask(gateway, "old").headers["x-ratchet-release"] == "release-2"
    assert ask(gateway, "new").headers["x-ratchet-release"] == "release-1"


def test_many_sessions_share_decode_steps(open_gateway: Open, slot_engine: SlotEngine, monkeypatch: Any) -> None:
    polls = []
    poll = slot_engine.poll
    monkeypatch.setattr(slot_engine, "poll", lambda: polls.append(1) or poll())
    gateway = open_gateway(slot_engine)
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda n: ask(gateway, f"s{n}", max_tokens=32).json(), range(16)))
    tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert tokens > 100
    assert len(polls) < tokens / 2


def test_a_named_release_is_served_and_an_unknown_model_follows_the_share(
    open_gateway: Open, slot_engine: SlotEngine, candidate: Served
) -> None:
    gateway = open_gateway(slot_engine)
    gateway.begin(candidate, 0.0)
    assert ask(gateway, "a", model="release-2").headers["x-ratchet-release"] == "release-2"
    assert ask(gateway, "b", model="gpt-4").headers["x-ratchet-release"] == "release-1"


@pytest.mark.parametrize(
    ("content", "status", "code", "says"),
    [
        (b"{", 400, "invalid_value", "JSON"),
        (b'{"messages": []}', 400, "invalid_value", "messages"),
        (b'{"messages": [{"role": "robot", "content": "x"}]}', 400, "invalid_value", "messages.0.role"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 2}', 400, "invalid_value", "n"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": -1}', 400, "invalid_value", "temperature"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}', 400, "invalid_value", "max_tokens"),
        (b'{"messages": [{"role": "user", "content": "' + b"x" * 5000 + b'"}]}', 413, "request_too_large", "4096"),
        (b'{"messages": [{"role": "user", "content": "' + b"1" * 300 + b'"}]}', 400, "context_length_exceeded", "199"),
    ],
)
def test_mistakes_are_openai_errors(
    open_gateway: Open, slot_engine: SlotEngine, content: bytes, status: int, code: str, says: str
) -> None:
    gateway = open_gateway(slot_engine, max_request_bytes=4096, max_context=200)
    reply = HTTP.post(f"{gateway.url}/v1/chat/completions", content=content)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert says in reply.json()["error"]["message"]
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_the_client_raises_its_own_errors(open_gateway: Open, slot_engine: SlotEngine) -> None:
    api = client(open_gateway(slot_engine))
    with pytest.raises(openai.BadRequestError, match="temperature"):
        api.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], temperature=-1)
    with pytest.raises(openai.NotFoundError):
        api.embeddings.create(model="m", input="x")


def test_an_engine_that_fails_one_session_fails_that_one(
    open_gateway: Open, tmp_path: Path, scripted: Scripted
) -> None:
    engine = scripted(lambda v, session, t: EngineError("no memory", (session,)) if session == "bad" else "x")
    gateway = open_gateway(engine)
    bad, good = ask(gateway, "bad"), ask(gateway, "good")
    assert (bad.status_code, bad.json()["error"]["code"]) == (500, "engine_error")
    assert bad.headers["x-ratchet-release"] == "release-1"
    assert good.status_code == 200
    rows = read_audit(tmp_path / "audit")
    assert list(zip(rows["session"], rows["status"], strict=True)) == [("bad", "engine_error"), ("good", "ok")]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_breaks_leaves_nobody_waiting(open_gateway: Open, scripted: Scripted) -> None:
    gateway = open_gateway(scripted(lambda version, session, turn: ValueError("cuda")))
    assert ask(gateway, "a").status_code == 503
    assert ask(gateway, "b").json()["error"]["type"] == "server_error"
    assert HTTP.get(f"{gateway.url}/health").status_code == 503


def test_a_completion_that_takes_too_long_ends_and_the_session_can_go_on(
    open_gateway: Open, scripted: Scripted
) -> None:
    engine = scripted(lambda version, session, turn: "x")
    gateway = open_gateway(engine, request_seconds=0.3)
    engine.silent.set()
    late = ask(gateway, "s")
    assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
    engine.silent.clear()
    assert ask(gateway, "s").status_code == 200


def test_weights_other_than_the_releases_are_never_served(
    open_gateway: Open, scripted: Scripted, candidate: Served
) -> None:
    engine = scripted(lambda version, session, turn: "x")
    gateway = open_gateway(engine)
    engine.digests["release-1"] = "other"
    reply = ask(gateway, "s")
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "wrong_weights")
    engine.digests["release-1"], engine.digests["release-2"] = "digest-1", "other"
    with pytest.raises(EngineError, match="release-2 pins weights digest-2"):
        gateway.begin(candidate, 0.5)
    assert gateway.routes.candidate is None


def test_a_champion_that_is_not_what_it_pins_never_opens_the_gateway(open_gateway: Open, scripted: Scripted) -> None:
    engine = scripted(lambda version, session, turn: "x")
    engine.digests["release-1"] = "other"
    before = {thread.name for thread in threading.enumerate()}
    with pytest.raises(EngineError, match="release-1 pins weights digest-1"):
        open_gateway(engine)
    assert {thread.name for thread in threading.enumerate()} == before


def test_a_request_sent_again_is_answered_as_before_and_sampled_once(
    open_gateway: Open, slot_engine: SlotEngine, tmp_path: Path
) -> None:
    gateway = open_gateway(slot_engine)
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 12}
    url, headers = f"{gateway.url}/v1/chat/completions", {"x-session-id": "s"}
    first = HTTP.post(url, json=body, headers=headers)
    again = HTTP.post(url, json=body, headers=headers | {"x-stainless-retry-count": "1"})
    assert again.json() == first.json()
    assert len(read_audit(tmp_path / "audit")) == 1


def test_feedback_ends_a_session_in_the_audit_log(open_gateway: Open, slot_engine: SlotEngine, tmp_path: Path) -> None:
    gateway = open_gateway(slot_engine)
    used = ask(gateway, "s").json()["usage"]
    url = f"{gateway.url}/feedback"
    told = HTTP.post(url, json={"session": "s", "outcome": True, "metadata": {"horizon": "short"}})
    assert told.status_code == 200
    unknown = HTTP.post(url, json={"session": "s", "outcome": True})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_session")
    rows = read_audit(tmp_path / "audit")
    assert list(rows["kind"]) == ["turn", "outcome"]
    turn, outcome = rows.iloc[0], rows.iloc[1]
    assert (turn["prompt_tokens"], turn["completion_tokens"]) == (used["prompt_tokens"], used["completion_tokens"])
    assert (turn["release"], turn["arm"], turn["digest"], turn["status"]) == ("release-1", "champion", "digest-1", "ok")
    assert bool(outcome["outcome"]) and outcome["metadata"] == '{"horizon": "short"}'
    assert turn["latency"] > 0


def test_the_longest_idle_session_is_forgotten_when_there_are_too_many(
    open_gateway: Open, slot_engine: SlotEngine
) -> None:
    gateway = open_gateway(slot_engine, max_sessions=3)
    for number in range(6):
        assert ask(gateway, f"s{number}").status_code == 200
    assert HTTP.get(f"{gateway.url}/health").json()["sessions"] == 3
