"""What the vLLM engine says and understands, where sessions go, what proves a version: without a server."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts.errors import UserError
from tasks.rollout._vllm_placement import Placement
from tasks.rollout._vllm_proof import probe_request, prove
from tasks.rollout._vllm_wire import (
    Answer,
    base_model,
    read_answer,
    read_pressure,
    sampling_body,
    scoring_body,
    turn_seed,
)
from tasks.rollout.engine import EngineError, Pressure, SampleRequest
from tasks.rollout.vllm_config import VllmConfig
from tasks.rollout.vllm_server import arguments, check_vllm, environment, wait_up
from tasks.supervision import Plan, supervised


def payload(**changes: Any) -> dict[str, Any]:
    """An answer as vLLM 0.32 gives it, with prompt log-probabilities."""
    choice: dict[str, Any] = {
        "index": 0,
        "text": "ab",
        "token_ids": [17, 2],
        "logprobs": {"token_logprobs": [-0.25, -1.5], "tokens": ["a", "b"], "top_logprobs": [{}, {}]},
        "finish_reason": "stop",
        "stop_reason": 2,
        "prompt_token_ids": [5, 6, 7],
        "prompt_logprobs": [None, {"6": {"logprob": -3.0, "rank": 4}}, {"7": {"logprob": -0.5, "rank": 1}}],
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 16}}
    return {"choices": [choice | changes], "usage": usage}


def test_an_answer_is_read_token_by_token() -> None:
    assert read_answer(payload()) == Answer([17, 2], [-0.25, -1.5], "stop", 16, [-3.0, -0.5])
    plain = payload(prompt_logprobs=None, finish_reason="length")
    plain["usage"]["prompt_tokens_details"] = None
    assert read_answer(plain) == Answer([17, 2], [-0.25, -1.5], "length", 0, [])


@pytest.mark.parametrize(
    "changes",
    [
        {"finish_reason": "abort"},
        {"finish_reason": None},
        {"token_ids": [17]},
        {"token_ids": None},
        {"token_ids": [], "logprobs": {"token_logprobs": []}},
        {"logprobs": None},
        {"logprobs": {"token_logprobs": [-0.25, None]}},
        {"logprobs": {"token_logprobs": [-0.25, math.nan]}},
        {"logprobs": {"token_logprobs": [-0.25, -9999.0]}},
        {"prompt_logprobs": [None, {}, {"7": {"logprob": -0.5}}]},
    ],
)
def test_an_answer_that_is_not_whole_is_an_engine_error(changes: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="a vLLM server"):
        read_answer(payload(**changes))


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"error": {"message": "no"}}, [], "text"])
def test_an_answer_of_another_form_is_an_engine_error(answer: Any) -> None:
    with pytest.raises(EngineError, match="not of the expected form"):
        read_answer(answer)


def test_every_sampling_parameter_is_sent_and_only_our_stop_ids_end_a_turn() -> None:
    request = SampleRequest("s", "v", (4, 5), 30, temperature=0.7, top_p=0.9, seed=3, stop_ids=frozenset({9, 2}))
    body = sampling_body("policy-1", request, 12, 99)
    assert (body["model"], body["prompt"], body["max_tokens"], body["seed"]) == ("policy-1", [4, 5], 12, 99)
    assert (body["temperature"], body["top_p"], body["stop_token_ids"], body["ignore_eos"]) == (0.7, 0.9, [2, 9], True)
    neutral = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert {key: body[key] for key in neutral} == neutral
    forced = scoring_body("base", [1, 2, 3])
    assert (forced["prompt"], forced["prompt_logprobs"], forced["max_tokens"]) == ([1, 2, 3], 0, 1)


def test_each_turn_has_a_seed_of_its_own_that_the_sessions_seed_decides() -> None:
    seeds = [turn_seed(seed, turn) for seed in range(3) for turn in range(50)]
    assert len(set(seeds)) == 150
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert turn_seed(0, 0) == 3065247057545751466
    assert turn_seed(1, 11) != turn_seed(11, 1)


def test_the_base_is_the_model_without_a_parent() -> None:
    models = [{"id": "base", "max_model_len": 512, "parent": None}, {"id": "policy-1", "parent": "base"}]
    assert base_model({"data": models}) == ("base", 512)
    for wrong in ({"data": []}, {"data": [models[0], models[0]]}, {"data": [{"id": "base"}]}, {}):
        with pytest.raises(EngineError, match="does not say"):
            base_model(wrong)


def test_sessions_go_to_the_least_loaded_server_and_stay() -> None:
    placement = Placement(["one", "two"])
    assert [placement.place(name) for name in "abcd"] == ["one", "two", "one", "two"]
    placement.forget("b")
    placement.forget("d")
    assert [placement.place(name) for name in "aec"] == ["one", "two", "one"]
    assert placement.place("f") == "two"
    placement.forget("unknown")


def test_a_lost_servers_sessions_are_placed_anew_and_nobody_elses() -> None:
    placement = Placement(["one", "two", "three"])
    before = {name: placement.place(name) for name in "abcdef"}
    placement.lose("two")
    placement.lose("two")
    assert placement.living == ["one", "three"]
    after = {name: placement.place(name) for name in "abcdef"}
    assert {name: after[name] for name in "adcf"} == {name: before[name] for name in "adcf"}
    assert {after["b"], after["e"]} == {"one", "three"}


def expected(adapter: Path | None, token_ids: Any, temperatures: Any) -> list[float]:
    """A model whose adapter adds 4e-4 to each log-probability of -1, over the temperature."""
    return [(-1.0 if adapter is None else -0.9996) / temperature for temperature in temperatures]


def probed(forced: float, sampled: float) -> Answer:
    return Answer([1] * 8, [sampled] * 8, "length", 0, [forced] * 31)


BASE = probed(-1.0, -1.0 / 0.7)
REQUEST = probe_request(768)


def test_a_version_that_is_served_as_it_is_passes_the_proof() -> None:
    prove("policy-00001", Path("a"), probed(-0.9996, -0.9996 / 0.7), REQUEST, expected, 1e-3, before=(None, BASE))
    prove("policy-00000", None, BASE, REQUEST, expected, 1e-3)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (probed(-0.99, -0.9996 / 0.7), "of given tokens are off by 0.0096"),
        (probed(math.nan, -0.9996 / 0.7), "of given tokens are off by nan"),
        (probed(-0.9996, -0.9996), "sampled at temperature 0.7 are off by 0.43"),
        (BASE, "moved by 0; they did not reach it"),
    ],
    ids=["other weights", "no number", "raw log-probabilities", "adapter smaller than the limit, never there"],
)
def test_what_is_not_proven_does_not_serve(answer: Answer, says: str) -> None:
    with pytest.raises(EngineError, match=says):
        prove("policy-00001", Path("a"), answer, REQUEST, expected, 1e-3, before=(None, BASE))


def test_the_servers_flags_follow_from_the_recipe() -> None:
    config = VllmConfig(servers=2, max_model_len=512, max_lora_rank=8, devices=("0", "1"), flags=("--max-num-seqs=9",))
    command = arguments(config, "models/starter", 8001)
    for flag in ("--port=8001", "--max-model-len=512", "--max-lora-rank=8", "--enable-lora", "--max-num-seqs=9",
                 "--logprobs-mode=processed_logprobs", "--generation-config=vllm", "--dtype=float32"):  # fmt: skip
        assert flag in command
    assert not [flag for flag in arguments(VllmConfig(), "m", 1) if "max-model-len" in flag]
    variables = environment(config, 1)
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["VLLM_NO_USAGE_STATS"]) == ("1", "1")
    assert environment(VllmConfig(threads=3), 0)["OMP_NUM_THREADS"] == "3"
    assert "VLLM_SERVER_DEV_MODE" not in variables
    assert environment(VllmConfig(reload=True), 0)["VLLM_SERVER_DEV_MODE"] == "1"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"endpoints": ("localhost:8000",)}, "write scheme, host and port alone"),
        ({"endpoints": ("http://a:1/v1",)}, "write scheme, host and port alone"),
        ({"endpoints": ("http://a:1", "http://a:1/")}, "names a server twice"),
        ({"flags": ("--logprobs-mode=raw_logprobs",)}, "leave it out"),
        ({"servers": 2, "devices": ("0",)}, "write one text for each server"),
    ],
)
def test_settings_that_can_not_work_are_refused_with_a_remedy(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        VllmConfig(**settings)


def test_a_missing_package_and_a_rank_too_high_are_the_users_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    running = VllmConfig(endpoints=("http://a:1",))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="make vllm"):
        check_vllm(VllmConfig(), 16)
    check_vllm(running, 999)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with pytest.raises(UserError, match=r"raise rollout\.vllm\.max_lora_rank"):
        check_vllm(VllmConfig(), 17)
    check_vllm(VllmConfig(), 16)


def test_a_server_that_does_not_come_up_is_explained_by_the_end_of_its_log(tmp_path: Path) -> None:
    broken = [sys.executable, "-S", "-c", "print('no such model'); raise SystemExit(3)"]
    with (
        supervised(Plan("vllm-0", "http://127.0.0.1:9", broken, tmp_path)) as service,
        pytest.raises(EngineError, match=r"(?s)vllm-0 ended with exit code 3; the end of .*vllm-0.log:\nno such model"),
    ):
        wait_up([service], 60)
    slow = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    with (
        supervised(Plan("vllm-1", "http://127.0.0.1:9", slow, tmp_path)) as service,
        pytest.raises(EngineError, match=r"vllm-1 was not up after 0\.3 s"),
    ):
        wait_up([service], 0.3)


METRICS = """# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:num_preemptions_total{engine="1",model_name="m"} 3.0
"""


def test_pressure_is_the_fullest_cache_and_all_preemptions() -> None:
    assert read_pressure(METRICS) == Pressure(0.75, 5)
    assert read_pressure("") is None
