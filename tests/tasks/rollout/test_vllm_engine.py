"""The vLLM engine on two real servers with the starter model: what is sampled, and whose weights."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from data_contracts.errors import UserError
from data_contracts.store import read_json, read_segments
from models.chat import Chat
from models.fingerprint import digest_folder
from models.policy import trainable_policy
from tasks.curriculum.generator import generate
from tasks.paths import RunFolder
from tasks.rollout.agent import Job
from tasks.rollout.engine import Completion, ContextFull, EngineError, SampleRequest
from tasks.rollout.environments import open_session
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.vllm_engine import VllmEngine, trainers_logprobs
from tasks.rollout.vllm_server import Endpoint

ROOT = Path(__file__).parents[3]
OLD, NEW = "policy-00001", "policy-00002"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm"),
]


@pytest.fixture(scope="module")
def engine(served: Any) -> Iterator[VllmEngine]:
    with closing(VllmEngine.from_base(served.base, served.endpoints, served.config)) as engine:
        engine.load_adapter("base", None)
        engine.load_adapter(OLD, served.adapter(OLD, 0.02))
        engine.load_adapter(NEW, served.adapter(NEW, 0.03))
        yield engine


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with closing(WarmPool(2, "agent")) as pool:
        yield pool


def finish(engine: VllmEngine, *requests: SampleRequest) -> dict[str, Completion]:
    """Submit, and poll until all have ended; the sessions stay open."""
    for request in requests:
        engine.submit(request)
    done: dict[str, Completion] = {}
    deadline = time.monotonic() + 120
    while len(done) < len(requests):
        assert time.monotonic() < deadline
        done |= dict(engine.poll())
    return done


def tokens(n: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 768, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def worst(some: Sequence[float], others: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_every_sampled_token_of_whole_sessions_has_the_trainers_logprob_over_an_adapter_change(
    engine: VllmEngine, served: Any, pool: WarmPool, make_jobs: Callable[..., list[Job]], temperature: float
) -> None:
    for version in (OLD, NEW):
        adapter = served.home / "policies" / version
        rollouts = served.sessions(engine, pool, make_jobs(4, 3, 5), version, temperature)
        gaps = []
        for rollout in rollouts:
            trajectory = rollout.trajectory
            assert trajectory.status in ("completed", "out_of_turns", "out_of_tokens")
            assert {turn.policy_digest for turn in trajectory.turns} == {digest_folder(adapter)}
            assert sum(sum(segment.loss_mask) for segment in rollout.segments) == trajectory.sampled_tokens
            for segment in rollout.segments:
                right = [0.0, *served.logprobs(adapter, segment.token_ids, temperature)]
                sampled = [t for t, mask in enumerate(segment.loss_mask) if mask]
                gaps += [abs(right[t] - segment.rollout_logprobs[t]) for t in sampled]
        assert len(gaps) == sum(rollout.trajectory.sampled_tokens for rollout in rollouts) > 150
        assert max(gaps) < 1e-4
        assert any(len(rollout.trajectory.turns) > 1 for rollout in rollouts)


def test_greedy_takes_the_argmax_with_its_logprob_at_temperature_one(engine: VllmEngine, served: Any) -> None:
    prompt = tokens(40)
    greedy = finish(engine, SampleRequest("greedy", OLD, prompt, 12, temperature=0.0))["greedy"]
    adapter, whole = served.home / "policies" / OLD, prompt + greedy.token_ids
    assert worst(greedy.logprobs, served.logprobs(adapter, whole)[39:]) < 1e-4
    with torch.inference_mode():
        logits = trainable_policy(served.base, adapter).eval()(torch.tensor([whole])).logits[0, 39:-1]
    assert greedy.token_ids == logits.argmax(-1).tolist()


def test_a_version_is_what_peft_computes_and_the_base_is_not_moved(engine: VllmEngine, served: Any) -> None:
    given = tokens(300)
    forced = {version: engine.teacher_force(version, given) for version in ("base", OLD, NEW)}
    for version, adapter in (("base", None), (OLD, served.adapter(OLD, 0.02)), (NEW, served.adapter(NEW, 0.03))):
        assert worst(forced[version], served.logprobs(adapter, given)) < 1e-4
    assert worst(forced["base"], forced[OLD]) > 0.1
    assert worst(forced[OLD], forced[NEW]) > 0.1


@pytest.mark.parametrize(
    ("version", "scale", "says"),
    [("policy-00018", 0.02, "does not serve policy-00018"), ("policy-10018", 2e-6, "they did not reach it")],
    ids=["a change above the limit", "a change below it"],
)
def test_an_adapter_that_never_reached_the_server_does_not_serve(
    served: Any, version: str, scale: float, says: str
) -> None:
    """Case 18: the servers read an adapter that changes nothing, the trainer holds the trained one."""
    trained, untrained = served.adapter(version, scale), served.adapter("policy-00000", 0.0)
    right = trainers_logprobs(served.base)
    with closing(
        VllmEngine(
            served.endpoints,
            lambda adapter, given, temperatures: right(adapter and trained, given, temperatures),
            lambda adapter: digest_folder(trained),
            vocabulary=768,
        )
    ) as engine:
        with pytest.raises(EngineError, match=says):
            engine.load_adapter(version, untrained)
        with pytest.raises(EngineError, match="not loaded"):
            engine.submit(SampleRequest("s", version, [5], 1))
        assert not [name for endpoint in served.endpoints for name in adapters_on(endpoint) if version in name]
        assert engine.load_adapter(version, trained) == digest_folder(trained)


def adapters_on(endpoint: Endpoint) -> list[str]:
    models = httpx.get(f"{endpoint.url}/v1/models", trust_env=False).json()["data"]
    return [model["id"] for model in models if model["parent"]]


def test_cached_logprobs_after_a_version_change_equal_a_cold_servers(engine: VllmEngine, served: Any) -> None:
    """Case 19: the prefix cache of one version is never read for another."""
    prompt = tokens(300, seed=1)
    first = finish(engine, SampleRequest("warm", OLD, prompt, 8))["warm"]
    longer = prompt + first.token_ids + tokens(5)
    second = finish(engine, SampleRequest("warm", OLD, longer, 8))["warm"]
    changed = finish(engine, SampleRequest("warm", NEW, longer, 8))["warm"]
    again = finish(engine, SampleRequest("warm", NEW, longer, 8))["warm"]
    assert (first.cached_tokens, changed.cached_tokens) == (0, 0)
    assert second.cached_tokens >= 256
    assert again.cached_tokens >= 256
    for version, turn in ((OLD, second), (NEW, changed), (NEW, again)):
        right = served.logprobs(served.home / "policies" / version, longer + turn.token_ids)
        assert worst(turn.logprobs, right[len(longer) - 1 :]) < 1e-4
    for n in range(4):  # a session's fourth turn, on the server that has seen none of it
        cold = finish(engine, SampleRequest("cold", NEW, longer if n == 3 else [5 + n], 8))["cold"]
    assert cold.cached_tokens == 0
    assert cold.token_ids == again.token_ids
    assert worst(cold.logprobs, again.logprobs) < 1e-4
    engine.close_session("warm")
    engine.close_session("cold")


def test_a_seed_decides_a_session_and_each_turn_draws_anew(engine: VllmEngine) -> None:
    def turn(session: str, seed: int) -> list[int]:
        request = SampleRequest(session, OLD, tokens(30), 48, temperature=2.0, seed=seed)
        return finish(engine, request)[session].token_ids

    turns = []
    for _ in range(2):
        turns.append([turn("s", 7), turn("s", 7)])
        engine.close_session("s")
    assert turns[0] == turns[1]
    assert turns[0][0] != turns[0][1]
    other = turn("t", 8)
    engine.close_session("t")
    assert other != turns[0][0]


def test_a_stop_token_is_the_last_of_its_turn_and_the_models_own_eos_is_none(engine: VllmEngine, served: Any) -> None:
    prompt, eos = tokens(30), served.base.model.config.eos_token_id
    plain = finish(engine, SampleRequest("s", OLD, prompt, 24, seed=3))["s"]
    engine.close_session("s")
    stop = plain.token_ids[5]
    at = plain.token_ids.index(stop)
    stopped = finish(engine, SampleRequest("s", OLD, prompt, 24, seed=3, stop_ids=frozenset({stop})))["s"]
    engine.close_session("s")
    assert (plain.finish_reason, stopped.finish_reason) == ("length", "stop")
    assert stopped.token_ids == plain.token_ids[: at + 1]
    assert worst(stopped.logprobs, plain.logprobs[: at + 1]) < 1e-4
    session = open_session(generate(5, "train", "short", 1)[0], pool)
    task = Chat(served.base.tokenizer).prompt(session.messages(), session.tools())
    endless = finish(engine, SampleRequest("e", "base", task, 30, temperature=0.0))["e"]
    assert eos in endless.token_ids[:-1]
    assert len(endless.token_ids) == 30
    engine.close_session("e")


def test_the_context_ends_a_turn_and_then_refuses(engine: VllmEngine) -> None:
    prompt = tokens(1020)
    cut = finish(engine, SampleRequest("s", OLD, prompt, 10))["s"]
    assert (len(cut.token_ids), cut.finish_reason) == (4, "length")
    with pytest.raises(ContextFull, match="context of 1024"):
        engine.submit(SampleRequest("s", OLD, prompt + cut.token_ids, 10))
    with pytest.raises(ContextFull):
        engine.teacher_force(OLD, prompt + cut.token_ids)
    engine.close_session("s")


def test_more_prompt_tokens_at_once_than_a_batch_of_the_server_takes(engine: VllmEngine, served: Any) -> None:
    """Prefilled in parts, requests with a seed end the CPU build of vLLM."""
    asked = [SampleRequest(f"long-{n}", OLD, tokens(900, n), 2, seed=n) for n in range(8)]
    done = finish(engine, *asked)
    for request in asked:
        whole = [*request.token_ids, *done[request.session].token_ids]
        right = served.logprobs(served.home / "policies" / OLD, whole)[len(request.token_ids) - 1 :]
        assert worst(done[request.session].logprobs, right) < 1e-4
        engine.close_session(request.session)


def test_a_version_is_dropped_everywhere_and_its_name_stands_for_its_weights(engine: VllmEngine, served: Any) -> None:
    version = "policy-00030"
    digest = engine.load_adapter(version, served.adapter(version, 0.02))
    assert engine.load_adapter(version, served.adapter(version, 0.02)) == digest
    with pytest.raises(ValueError, match="give new weights a new name"):
        engine.load_adapter(version, served.adapter(OLD, 0.02))
    engine.submit(SampleRequest("s", version, tokens(20), 900))
    with pytest.raises(EngineError, match="under way"):
        engine.drop_adapter(version)
    with pytest.raises(ValueError, match="under way"):
        engine.submit(SampleRequest("s", version, [5], 1))
    engine.close_session("s")
    engine.drop_adapter(version)
    for endpoint in served.endpoints:
        assert {name[:12] for name in adapters_on(endpoint)} == {OLD, NEW}
    assert engine.poll() == []


def test_full_weights_are_refused_on_servers_that_are_not_ours(engine: VllmEngine, served: Any) -> None:
    whole = served.whole("policy-00005", served.adapter(OLD, 0.02))
    with pytest.raises(UserError, match=r"leave rollout\.vllm\.endpoints out"):
        engine.load_adapter("policy-00005", whole)
    assert worst(engine.teacher_force(OLD, tokens(20)), served.logprobs(served.adapter(OLD, 0.02), tokens(20))) < 1e-4


def test_two_iterations_of_the_loop_through_kill_9(served: Any, tmp_path: Path) -> None:
    """`ratchet run` from problems to release, sampled by a server that runs already, killed among its rollouts."""
    changes = {
        "iterations": 2, "rollout.engine": "vllm", "rollout.vllm.endpoints": json.dumps([served.endpoints[0].url]),
        "curriculum.train_problems": "{ short = 16 }", "curriculum.problems_per_iteration": 4,
        "evaluation.problems": "{ short = 24 }", "rollout.max_staleness": 1, "rollout.capacity": 12,
    }  # fmt: skip
    given = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    recipe = ROOT / "infra" / "recipes" / "smoke.toml"
    command = [sys.executable, "-m", "flows.cli", "run", str(recipe), "--home", str(tmp_path), *given]

    def finished() -> list[str]:
        journals = tmp_path.glob("smoke-*/iterations/00000/journal.jsonl")
        return [line for journal in journals for line in journal.read_text().split("\n")[:-1]]

    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while len(finished()) < 3:
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.02)
        process.kill()
    before = finished()
    assert 3 <= len(before) < 16
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert finished()[: len(before)] == before, "a finished rollout was made again"
    assert len({json.loads(line)["trajectory"]["id"] for line in finished()}) == len(finished()) == 16
    (written,) = tmp_path.glob("smoke-*/recipe.json")
    run = RunFolder(written.parent)
    summary = json.loads(run.summary.read_text())
    assert (summary["iterations"], summary["rollouts"]["training"]) == (2, 2 * 4 * 4)
    gates = [gate for gate in summary["gates"] if gate["name"].startswith("rollout")]
    assert len(gates) >= 4
    assert {gate["verdict"] for gate in gates} == {"PASS"}
    for number in range(2):
        assert 0 < read_json(run.iteration(number).metrics)["mismatch.max_abs_diff"] < 1e-4
    begun_early = [n for s in read_segments(run.iteration(1).segments) for n in s.policy_numbers or () if n >= 0]
    assert 0 in begun_early and set(begun_early) <= {0, 1}
