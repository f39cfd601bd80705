"""The API that users' clients see: streams, text completions, keys, limits, metrics."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.chat import Chat
from tasks.canary.audit import read_audit
from tasks.canary.gateway import Gateway
from tasks.canary.gateway.telling import Teller
from tasks.canary.routing import Served
from tasks.canary.wire import assistant_message
from tasks.rollout.engine import EngineError
from tasks.rollout.slot_engine import SlotEngine
from tasks.rollout.toolformats import FORMATS

Open = Callable[..., Gateway]
Scripted = Callable[..., Any]
HTTP = httpx.Client(timeout=60, trust_env=False)
USER: list[Any] = [{"role": "user", "content": "def add(a, b):"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "edit", "parameters": {"type": "object", "properties": {}}}}
]
EDIT = '<tool_call>\n{"name": "edit", "arguments": {"line": 2}}\n</tool_call>'
KEYS = {"ada": "key-of-ada", "bob": "key-of-bob"}


def client(gateway: Gateway, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)


def tenants(**limits: Any) -> list[dict[str, Any]]:
    sums = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in KEYS.items()}
    return [
        {"name": "ada", "key_sha256": sums["ada"], "train": True} | limits,
        {"name": "bob", "key_sha256": sums["bob"]},
    ]


def completions(folder: Path) -> dict[str, Any]:
    rows = read_audit(folder)
    return {row.session: json.loads(row.completion) for row in rows.itertuples() if row.completion}


def test_a_stream_tells_the_tokens_as_they_come_and_adds_up_to_the_message(
    open_gateway: Open, slot_engine: SlotEngine, tmp_path: Path
) -> None:
    api = client(open_gateway(slot_engine))
    told: dict[str, str] = {}
    most = 0
    for number in range(6):
        raw = api.chat.completions.with_raw_response.create(
            model="m", messages=USER, max_tokens=40, seed=number, stream=True,
            stream_options={"include_usage": True}, extra_headers={"x-session-id": f"s{number}"},
        )  # fmt: skip
        assert raw.headers["x-ratchet-stream"] == "tokens"
        *chunks, finish, usage = list(raw.parse())
        told[f"s{number}"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        most = max(most, len(chunks))
        assert finish.choices[0].finish_reason in ("stop", "length")
        assert usage.choices == [] and usage.usage.completion_tokens >= len(chunks) - 3
    assert most > 8, "a chunk a token or so, not one at the end"
    assert told == {session: message["content"] for session, message in completions(tmp_path / "audit").items()}


def test_a_streamed_call_comes_whole_and_the_session_goes_on(
    open_gateway: Open, chat: Chat, scripted: Scripted
) -> None:
    engine = scripted(lambda version, session, turn: ["Let me see. " + EDIT, "done"][turn])
    api = client(open_gateway(engine))
    headers = {"x-session-id": "s"}
    raw = api.chat.completions.with_raw_response.create(
        model="m", messages=USER, tools=TOOLS, stream=True, extra_headers=headers
    )
    assert raw.headers["x-ratchet-stream"] == "turn", "this engine shows nothing before the end, and that is said"
    chunks = list(raw.parse())
    content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    [call] = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert (content, call.function.name, call.function.arguments) == ("Let me see.", "edit", '{"line": 2}')
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    told = {"role": "assistant", "content": content, "tool_calls": [call.model_dump(exclude={"index"})]}
    answered = [*USER, told, {"role": "tool", "tool_call_id": call.id, "content": "ok"}]
    second = api.chat.completions.create(model="m", messages=answered, tools=TOOLS, extra_headers=headers)
    assert second.choices[0].message.content == "done"
    exact = [*chat.prompt(USER, TOOLS), *chat.completion("Let me see. " + EDIT), *chat.observation(["ok"], closed=True)]
    assert engine.contexts[1] == exact


def test_a_stream_that_cannot_begin_is_an_error_with_its_status(open_gateway: Open, scripted: Scripted) -> None:
    api = client(open_gateway(scripted(lambda version, session, turn: EngineError("no memory", (session,)))))
    with pytest.raises(openai.InternalServerError, match="no memory"):
        api.chat.completions.create(model="m", messages=USER, stream=True)


def test_a_client_that_hangs_up_leaves_a_whole_row(open_gateway: Open, slot_engine: SlotEngine, tmp_path: Path) -> None:
    gateway = open_gateway(slot_engine)
    body = {"messages": USER, "stream": True, "max_tokens": 200, "seed": 1}
    with HTTP.stream("POST", f"{gateway.url}/v1/chat/completions", json=body, headers={"x-session-id": "s"}) as reply:
        next(reply.iter_bytes())
    deadline = time.monotonic() + 60
    while (rows := read_audit(tmp_path / "audit")).empty and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(rows["status"]) == ["ok"] and rows["completion_tokens"][0] > 1


PIECES = ["a", "b", " ", "<", ">", "/", "\n", "{", "}", "<tool_call>", "</tool_call>", "<think>", EDIT]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_what_is_settled_stays_whatever_follows(text: str) -> None:
    for form in FORMATS.values():
        whole = assistant_message(text, 0, form, cut=False)["content"]
        for end in range(len(text) + 1):
            told = text[: form.settled(text[:end])]
            assert whole.startswith(told), (told, whole)


def test_what_was_told_stands_when_it_turns_out_to_have_been_thinking(chat: Chat) -> None:
    """A template that opened the thinking block: only its end says that all before was no answer."""

    async def told() -> tuple[str, list[str]]:
        teller = Teller(chat, FORMATS["hermes"])
        teller._take(chat.ids("plan"))
        content = teller.told("answer")
        return content, [teller.pieces.get_nowait() or "" for _ in range(teller.pieces.qsize())]

    assert asyncio.run(told()) == ("plan", ["plan"])


def test_text_completions_give_ids_and_logprobs(open_gateway: Open, slot_engine: SlotEngine, chat: Chat) -> None:
    gateway = open_gateway(slot_engine)
    api, prompt = client(gateway), "assert add(1, 2)"
    settings: dict[str, Any] = {
        "model": "m",
        "max_tokens": 5,
        "temperature": 0,
        "extra_body": {"return_token_ids": True},
    }
    by_text = api.completions.create(prompt=prompt, logprobs=0, **settings).choices[0]
    by_ids = api.completions.create(prompt=chat.ids(prompt), **settings).choices[0]
    extra = by_text.model_extra
    assert extra is not None and extra["prompt_token_ids"] == chat.ids(prompt)
    assert by_text.logprobs is not None and by_text.logprobs.token_logprobs is not None
    assert by_ids.logprobs is None and by_ids.text == by_text.text == chat.decode(extra["token_ids"])
    whole = [*extra["prompt_token_ids"], *extra["token_ids"]]
    forced = gateway._pump.call(lambda engine: engine.teacher_force("release-1", whole)).result()
    assert by_text.logprobs.token_logprobs == pytest.approx(forced[-len(extra["token_ids"]) :], abs=1e-4)
    for wrong, says in (({"prompt": prompt, "logprobs": 3}, "logprobs"), ({"prompt": [10**6]}, "each from 0 to")):
        with pytest.raises(openai.BadRequestError, match=says):
            api.completions.create(model="m", **wrong)


def test_a_key_tells_the_tenant_and_its_sessions_are_its_own(
    open_gateway: Open, slot_engine: SlotEngine, tmp_path: Path
) -> None:
    gateway = open_gateway(slot_engine, tenants=tenants())
    with pytest.raises(openai.AuthenticationError, match="no such API key"):
        client(gateway, "wrong").chat.completions.create(model="m", messages=USER)
    for key in KEYS.values():
        raw = client(gateway, key).chat.completions.with_raw_response.create(
            model="m", messages=USER, max_tokens=4, extra_headers={"x-session-id": "s"}
        )
        assert raw.headers["x-session-id"] == "s"
    told = {"session": "s", "outcome": True, "reward": 0.5}
    bearer = {"authorization": f"Bearer {KEYS['ada']}"}
    assert HTTP.post(f"{gateway.url}/feedback", json=told, headers=bearer).status_code == 200
    assert HTTP.post(f"{gateway.url}/feedback", json=told, headers=bearer).status_code == 404
    rows = read_audit(tmp_path / "audit")
    assert list(zip(rows["tenant"], rows["session"], rows["trainable"], rows["kind"], strict=True)) == [
        ("ada", "ada:s", True, "turn"), ("bob", "bob:s", False, "turn"), ("ada", "ada:s", True, "outcome")
    ]  # fmt: skip
    assert rows["metadata"][2] == '{"reward": 0.5}'


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute"])
def test_a_tenant_that_asks_too_much_is_told_when_to_come_again(
    open_gateway: Open, slot_engine: SlotEngine, limit: str
) -> None:
    gateway = open_gateway(slot_engine, tenants=tenants(**{limit: 1}))
    ada, bob = client(gateway, KEYS["ada"]), client(gateway, KEYS["bob"])
    ask = {"model": "m", "messages": USER, "max_tokens": 4}
    ada.chat.completions.create(**ask)
    with pytest.raises(openai.RateLimitError) as refused:
        ada.chat.completions.create(**ask)
    assert int(refused.value.response.headers["retry-after"]) >= 1
    bob.chat.completions.create(**ask)
    reason = limit.split("_")[0]
    assert f'refused_total{{reason="{reason}",tenant="ada"}} 1.0' in HTTP.get(f"{gateway.url}/metrics").text


def test_no_more_than_a_tenants_requests_are_under_way(open_gateway: Open, scripted: Scripted) -> None:
    engine = scripted(lambda version, session, turn: "x")
    gateway = open_gateway(engine, tenants=tenants(in_flight=1))
    engine.silent.set()
    ada = client(gateway, KEYS["ada"])
    first = threading.Thread(target=lambda: ada.chat.completions.create(model="m", messages=USER))
    first.start()
    while not gateway._pump._waiting:
        time.sleep(0.005)
    with pytest.raises(openai.RateLimitError, match="under way"):
        ada.chat.completions.create(model="m", messages=USER)
    engine.silent.clear()
    first.join()
    ada.chat.completions.create(model="m", messages=USER)


def test_every_answer_is_in_the_audit_log_once_and_counted(
    open_gateway: Open, slot_engine: SlotEngine, candidate: Served, tmp_path: Path
) -> None:
    gateway = open_gateway(slot_engine)
    gateway.begin(candidate, 0.5)
    url, body = f"{gateway.url}/v1/chat/completions", {"messages": USER, "max_tokens": 4}

    def ask(number: int) -> tuple[str, str]:
        reply = HTTP.post(url, json=body, headers={"x-session-id": f"s{number % 20}"})
        return reply.headers["x-session-id"], reply.headers["x-ratchet-release"]

    with ThreadPoolExecutor(16) as threads:
        answers = Counter(threads.map(ask, range(60)))
    rows = read_audit(tmp_path / "audit")
    assert Counter(zip(rows["session"], rows["release"], strict=True)) == answers
    assert rows["event"].is_unique and set(rows["release"]) == {"release-1", "release-2"}
    text = HTTP.get(f"{gateway.url}/metrics").text
    ours = sum(release == "release-2" for _, release in answers.elements())
    name = 'requests_total{arm="candidate",path="/v1/chat/completions",release="release-2",status="200"}'
    assert f"ratchet_gateway_{name} {float(ours)}" in text
    assert "ratchet_gateway_audit_rows_total 60.0" in text and "ratchet_gateway_candidate_share 0.5" in text
    assert 'release_info{arm="candidate",digest="digest-2",release="release-2"} 1.0' in text


def test_what_is_written_is_redacted_and_what_is_sampled_from_is_not(
    open_gateway: Open, chat: Chat, scripted: Scripted, tmp_path: Path
) -> None:
    call = '<tool_call>\n{"name": "edit", "arguments": {"text": "mail ada@example.org"}}\n</tool_call>'
    engine = scripted(lambda version, session, turn: call)
    gateway = open_gateway(engine, redact=[{"name": "ticket", "pattern": r"T-\d+", "replacement": "[ticket]"}])
    asked: list[Any] = [{"role": "user", "content": "T-17: password = hunter2hunter2"}]
    client(gateway).chat.completions.create(model="m", messages=asked, tools=TOOLS)
    assert engine.contexts[0] == chat.prompt(asked, TOOLS)
    row = read_audit(tmp_path / "audit").iloc[0]
    assert json.loads(row["prompt"]) == [{"role": "user", "content": "[ticket]: [secret]"}]
    [told] = json.loads(row["completion"])["tool_calls"]
    assert told["function"]["arguments"] == '{"text": "mail [email]"}'
    assert 'redacted_total{rule="email"} 1.0' in HTTP.get(f"{gateway.url}/metrics").text
