"""The slot engine against plain forwards of the same model: every position, sessions joining and leaving."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from data_contracts.errors import UserError
from models.chat import Chat
from models.policy import LoraSpec, adapter_state, init_adapter, load_base, trainable_policy, write_adapter
from tasks.rollout.choice import Noise, choose
from tasks.rollout.engine import Completion, ContextFull, EngineError, SampleRequest
from tasks.rollout.slot_engine import SlotEngine
from tasks.rollout.slot_pool import ragged_batches

V = "policy-00000"
STOP = frozenset({5, 6, 7, 8})


def qwen(seed: int = 0, **changes: Any) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    shape: dict[str, Any] = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape |= {"vocab_size": 768, "hidden_size": 128, "head_dim": 32, "intermediate_size": 256}
    shape |= {"tie_word_embeddings": True, "max_position_embeddings": 512, "initializer_range": 0.1}
    return Qwen3ForCausalLM(Qwen3Config(**(shape | changes))).eval()


def engine_of(*models: Any, slots: int = 8) -> SlotEngine:
    """An engine whose n-th version is the n-th model."""
    by_path = {(Path(str(i)) if i else None): model for i, model in enumerate(models)}
    engine = SlotEngine(lambda path: by_path[path], lambda path: f"digest-{path}", slots=slots)
    engine.load_adapter(V, None)
    return engine


def ids(rng: np.random.Generator, n: int) -> list[int]:
    return [int(i) for i in rng.integers(9, 768, n)]


def finish(engine: SlotEngine, *requests: SampleRequest) -> dict[str, Completion]:
    for request in requests:
        engine.submit(request)
    done: dict[str, Completion] = {}
    for _ in range(1000):
        done |= dict(engine.poll())
        if len(done) == len(requests):
            return done
    raise AssertionError("the engine did not finish")


def plain(model: Any, tokens: list[int], temperature: float = 1.0) -> torch.Tensor:
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([tokens]), use_cache=False).logits[0].double() / temperature, -1)


def worst_gap(model: Any, prompt: list[int], completion: Completion, temperature: float = 1.0) -> float:
    """Largest difference to the model's own forward over the whole sequence, at the sampled positions."""
    whole = prompt + completion.token_ids
    table = plain(model, whole, temperature)
    return max(
        abs(float(table[len(prompt) + i - 1, token]) - logprob)
        for i, (token, logprob) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True))
    )


def drive(engine: SlotEngine, model: Any, sessions: int, turns: int, seed: int) -> tuple[float, list[list[int]]]:
    """Sessions of unequal lengths that come back at unequal times; returns the worst gap and the final contexts."""
    rng = np.random.default_rng(seed)
    contexts = {f"s{i}": ids(rng, 3 + 11 * (i % 5)) for i in range(sessions)}
    left, due, gap, tick = dict.fromkeys(contexts, turns), dict.fromkeys(contexts, 0), 0.0, 0
    while any(left.values()):
        for name, at in list(due.items()):
            if at <= tick:
                request = SampleRequest(name, V, list(contexts[name]), 1 + int(name[1:]) % 9, seed=int(name[1:]))
                engine.submit(request)
                del due[name]
        for name, completion in engine.poll():
            gap = max(gap, worst_gap(model, contexts[name], completion))
            held = len(contexts[name]) - completion.cached_tokens
            assert left[name] == turns or held <= 8, "a turn after the first prefills only what is new"
            left[name] -= 1
            contexts[name] += completion.token_ids + ids(rng, 1 + int(name[1:]) % 7)
            if left[name]:
                due[name] = tick + 1 + int(name[1:]) % 4
            else:
                engine.close_session(name)
        tick += 1
        assert tick < 2000
    return gap, list(contexts.values())


@pytest.mark.parametrize("slots", [24, 5])
def test_logprobs_equal_a_full_forward_over_turns_with_sessions_joining_and_leaving(slots: int) -> None:
    model = qwen()
    gap, contexts = drive(engine_of(model, slots=slots), model, sessions=20, turns=4, seed=1)
    assert gap < 1e-5
    assert max(map(len, contexts)) > 60


def test_the_same_work_twice_is_the_same_to_the_bit() -> None:
    runs = [drive(engine_of(qwen(), slots=7), qwen(), sessions=12, turns=3, seed=2) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    "model",
    [
        LlamaForCausalLM(LlamaConfig(vocab_size=768, hidden_size=48, num_hidden_layers=2, num_attention_heads=6,
                                     num_key_value_heads=3, intermediate_size=64, initializer_range=0.2)),
        GPT2LMHeadModel(GPT2Config(vocab_size=768, n_embd=48, n_layer=2, n_head=4, n_positions=256)),
        qwen(use_sliding_window=True, sliding_window=128, max_window_layers=0),
    ],
    ids=["llama", "gpt2-learned-positions", "sliding-window"],
)  # fmt: skip
def test_other_architectures_sample_by_their_own_distribution(model: Any) -> None:
    gap, _ = drive(engine_of(model.eval(), slots=6), model, sessions=8, turns=2, seed=3)
    assert gap < 1e-5


def test_a_session_keeps_its_cache_and_prefills_only_the_rest() -> None:
    model, rng = qwen(), np.random.default_rng(0)
    engine, first = engine_of(model), ids(rng, 30)
    one = finish(engine, SampleRequest("s", V, first, 4))["s"]
    assert (one.prompt_tokens, one.cached_tokens, one.finish_reason) == (30, 0, "length")
    second = first + one.token_ids + ids(rng, 6)
    two = finish(engine, SampleRequest("s", V, second, 3))["s"]
    # The last sampled token never went through the model: it is new, with the 6 after it.
    assert (two.prompt_tokens, two.cached_tokens) == (40, 33)
    assert worst_gap(model, second, two) < 1e-5


def test_a_context_that_does_not_extend_the_slot_starts_over() -> None:
    model, rng = qwen(), np.random.default_rng(0)
    engine, first = engine_of(model), ids(rng, 30)
    one = finish(engine, SampleRequest("s", V, first, 4))["s"]
    changed = [*first[:10], 9 if first[10] != 9 else 10, *first[11:], *one.token_ids, 11]
    two = finish(engine, SampleRequest("s", V, changed, 4))["s"]
    shorter = finish(engine, SampleRequest("s", V, changed[:20], 4))["s"]
    assert (two.cached_tokens, shorter.cached_tokens) == (0, 0)
    assert worst_gap(model, changed, two) < 1e-5
    assert worst_gap(model, changed[:20], shorter) < 1e-5


def test_the_same_context_again_still_gives_a_distribution() -> None:
    model, first = qwen(), ids(np.random.default_rng(0), 12)
    engine = engine_of(model)
    finish(engine, SampleRequest("s", V, first, 1))
    again = finish(engine, SampleRequest("s", V, first, 1))["s"]
    assert again.cached_tokens == 11
    assert worst_gap(model, first, again) < 1e-5


def test_a_groups_shared_prompt_is_prefilled_once_and_each_session_draws_its_own() -> None:
    model, prompt = qwen(), ids(np.random.default_rng(0), 40)
    engine = engine_of(model)
    requests = [SampleRequest(f"s{i}", V, prompt, 6, seed=i) for i in range(6)]
    shared = finish(engine, *requests)
    alone = {r.session: finish(engine_of(qwen()), r)[r.session] for r in requests}
    assert {name: c.token_ids for name, c in shared.items()} == {name: c.token_ids for name, c in alone.items()}
    assert len({tuple(c.token_ids) for c in shared.values()}) == 6
    assert max(worst_gap(model, prompt, c) for c in shared.values()) < 1e-5
    follow = prompt + shared["s5"].token_ids + [30, 31]
    assert worst_gap(model, follow, finish(engine, SampleRequest("s5", V, follow, 4))["s5"]) < 1e-5


def test_requests_beyond_the_slots_queue_until_a_session_closes() -> None:
    engine, prompt = engine_of(qwen(), slots=2), [20, 21, 22]
    for name in "abc":
        engine.submit(SampleRequest(name, V, prompt, 2))
    done = [name for _ in range(5) for name, _ in engine.poll()]
    assert done == ["a", "b"]
    engine.close_session("a")
    assert [name for _ in range(2) for name, _ in engine.poll()] == ["c"]


def test_stop_token_is_the_last_sampled_one_and_sets_the_ending() -> None:
    engine, prompt = engine_of(qwen()), ids(np.random.default_rng(0), 12)
    free = finish(engine, SampleRequest("a", V, prompt, 12, seed=4))["a"]
    stop = frozenset({free.token_ids[5]})
    cut = free.token_ids.index(free.token_ids[5])
    stopped = finish(engine, SampleRequest("b", V, prompt, 12, seed=4, stop_ids=stop))["b"]
    assert (free.finish_reason, stopped.finish_reason) == ("length", "stop")
    assert stopped.token_ids == free.token_ids[: cut + 1]


@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_logprobs_are_those_of_the_sampling_temperature(temperature: float) -> None:
    model, prompt = qwen(), ids(np.random.default_rng(0), 12)
    sampled = finish(engine_of(model), SampleRequest("s", V, prompt, 10, temperature=temperature))["s"]
    assert worst_gap(model, prompt, sampled, temperature) < 1e-5
    assert worst_gap(model, prompt, sampled, 1.0) > 0.01


def test_temperature_zero_takes_the_argmax_with_its_logprob_at_temperature_one() -> None:
    model, prompt = qwen(), ids(np.random.default_rng(0), 12)
    greedy = finish(engine_of(model), SampleRequest("s", V, prompt, 8, temperature=0.0))["s"]
    table = plain(model, prompt + greedy.token_ids)
    assert greedy.token_ids == table[len(prompt) - 1 : -1].argmax(-1).tolist()
    assert worst_gap(model, prompt, greedy) < 1e-5


def test_one_temperature_on_both_sides_gives_ratio_one() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]]).repeat(3, 1)
    tokens, logprobs = choose(logits, [0.6] * 3, [1.0] * 3, [0.1, 0.9, 0.999])
    denominator = sum(math.exp(x / 0.6) for x in (2, 1, 0))
    expected = [math.log(math.exp((2 - token) / 0.6) / denominator) for token in tokens]
    assert tokens == [0, 1, 2]
    assert logprobs == pytest.approx(expected, abs=1e-6)


def test_top_p_keeps_the_nucleus_and_renormalises_only_the_rows_that_ask() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    rows = probabilities.log().repeat(4, 1)
    tokens, logprobs = choose(rows, [1.0] * 4, [0.7, 0.7, 1.0, 1e-9], [0.999, 0.1, 0.999, 0.999])
    assert tokens == [1, 0, 3, 0]
    assert [math.exp(x) for x in logprobs] == pytest.approx([0.375, 0.625, 0.05, 1.0], abs=1e-6)


def test_tokens_are_drawn_in_proportion_and_never_where_the_probability_is_zero() -> None:
    n, rng = 20_000, np.random.default_rng(0)
    rows = torch.tensor([[0.0, 0.6, 0.0, 0.4, 0.0]]).log().expand(n, -1)
    uniforms = [0.0, math.nextafter(1.0, 0.0), *rng.random(n - 2)]
    tokens, _ = choose(rows, [1.0] * n, [1.0] * n, uniforms)
    assert (tokens[0], tokens[1]) == (1, 3)
    assert set(tokens) == {1, 3}
    assert tokens.count(1) / n == pytest.approx(0.6, abs=0.015)


def test_noise_is_the_seeds_stream_however_it_is_drawn() -> None:
    noise = Noise(7)
    assert [noise.draw() for _ in range(200)] == np.random.default_rng(7).random(200).tolist()


def test_what_a_session_draws_does_not_depend_on_its_company() -> None:
    rng = np.random.default_rng(0)
    mine = SampleRequest("mine", V, ids(rng, 20), 16, seed=3)
    others = [SampleRequest(f"o{i}", V, ids(rng, 5 + 6 * i), 3 + i, seed=i) for i in range(6)]
    alone = finish(engine_of(qwen()), mine)["mine"]
    together = finish(engine_of(qwen()), *others[:3], mine, *others[3:])["mine"]
    assert together.token_ids == alone.token_ids


def test_versions_are_served_side_by_side_and_a_session_that_changes_version_forgets() -> None:
    first, second, prompt = qwen(0), qwen(1), ids(np.random.default_rng(0), 15)
    engine = engine_of(first, second)
    assert engine.load_adapter("policy-00001", Path("1")) == "digest-1"
    both = finish(engine, SampleRequest("a", V, prompt, 5), SampleRequest("b", "policy-00001", prompt, 5))
    assert worst_gap(first, prompt, both["a"]) < 1e-5
    assert worst_gap(second, prompt, both["b"]) < 1e-5
    assert (both["a"].policy_digest, both["b"].policy_digest) == ("digest-None", "digest-1")
    longer = prompt + both["a"].token_ids + [40]
    moved = finish(engine, SampleRequest("a", "policy-00001", longer, 5))["a"]
    assert moved.cached_tokens == 0
    assert worst_gap(second, longer, moved) < 1e-5


def test_an_adapter_reaches_the_samples_and_an_empty_one_is_the_base(tmp_path: Path, chat: Chat) -> None:
    qwen().save_pretrained(tmp_path / "base")
    chat.tokenizer.save_pretrained(tmp_path / "base")
    base = load_base(tmp_path / "base")
    fresh = init_adapter(base, LoraSpec(r=4, alpha=8), tmp_path / "policy-00000", seed=0)
    trained = trainable_policy(base, fresh)
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.02)
    moved = write_adapter(adapter_state(trained), trained.peft_config["default"], tmp_path / "policy-00001")
    engine, prompt = SlotEngine.from_base(base, slots=2), ids(np.random.default_rng(0), 20)
    digests = {name: engine.load_adapter(name, path) for name, path in (("base", None), (V, fresh), ("new", moved))}
    assert len(set(digests.values())) == 3
    assert engine.teacher_force(V, prompt) == engine.teacher_force("base", prompt)
    turns = {name: finish(engine, SampleRequest(name, name, prompt, 8))[name] for name in digests}
    assert turns[V].logprobs == turns["base"].logprobs
    for name, turn in turns.items():
        assert turn.policy_digest == digests[name]
        forced = engine.teacher_force(name, prompt + turn.token_ids)[19:]
        assert turn.logprobs == pytest.approx(forced, abs=1e-5)
    with torch.inference_mode():
        expected = torch.log_softmax(trained(torch.tensor([prompt])).logits[0], -1)
    forced = engine.teacher_force("new", prompt)
    assert forced == pytest.approx([float(expected[i, t]) for i, t in enumerate(prompt[1:])], abs=1e-5)
    assert max(abs(a - b) for a, b in zip(forced, engine.teacher_force("base", prompt), strict=True)) > 0.01


def test_a_version_name_is_never_reused_for_other_weights() -> None:
    engine = engine_of(qwen(0), qwen(1))
    assert engine.load_adapter(V, None) == "digest-None"
    with pytest.raises(ValueError, match="give new weights a new name"):
        engine.load_adapter(V, Path("1"))
    engine.submit(SampleRequest("a", V, [20], 2))
    with pytest.raises(EngineError, match="under way"):
        engine.drop_adapter(V)
    engine.close_session("a")
    engine.drop_adapter(V)
    with pytest.raises(EngineError, match="not loaded"):
        engine.submit(SampleRequest("a", V, [20], 2))


def test_the_context_of_the_model_ends_a_turn_and_then_refuses() -> None:
    engine = engine_of(qwen(max_position_embeddings=32))
    prompt = ids(np.random.default_rng(0), 29)
    cut = finish(engine, SampleRequest("s", V, prompt, 10))["s"]
    assert (len(cut.token_ids), cut.finish_reason) == (3, "length")
    with pytest.raises(ContextFull, match="context of 32"):
        engine.submit(SampleRequest("s", V, prompt + cut.token_ids, 10))


def test_logits_that_are_not_finite_end_those_sessions_and_no_others() -> None:
    model = qwen()
    engine = engine_of(model)
    with torch.no_grad():
        model.model.embed_tokens.weight[700] = float("nan")
        model.set_output_embeddings(torch.nn.Linear(128, 768, bias=False))
    engine.submit(SampleRequest("good", V, [20, 21], 1))
    engine.submit(SampleRequest("bad", V, [20, 700], 3))
    with pytest.raises(EngineError, match="no finite numbers") as caught:
        engine.poll()
    assert caught.value.sessions == ("bad",)
    assert [name for name, _ in engine.poll()] == ["good"]


def test_teacher_forcing_scores_a_completion_as_it_was_sampled() -> None:
    model, prompt = qwen(), ids(np.random.default_rng(0), 25)
    engine = engine_of(model)
    completion = finish(engine, SampleRequest("s", V, prompt, 20))["s"]
    forced = engine.teacher_force(V, prompt + completion.token_ids)
    assert len(forced) == 44
    assert forced[24:] == pytest.approx(completion.logprobs, abs=1e-5)


def test_bad_requests_are_refused() -> None:
    engine = engine_of(qwen())
    engine.submit(SampleRequest("a", V, [20], 2))
    with pytest.raises(ValueError, match="under way"):
        engine.submit(SampleRequest("a", V, [20], 2))
    for token_ids, most in (([], 2), ([20], 0)):
        with pytest.raises(ValueError, match="a token to start from"):
            engine.submit(SampleRequest("b", V, token_ids, most))


def test_a_model_that_the_slots_would_sample_wrongly_is_refused() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    capped = Gemma2ForCausalLM(
        Gemma2Config(vocab_size=768, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                     head_dim=16, intermediate_size=64, attn_logit_softcapping=0.1, initializer_range=0.5,
                     attn_implementation="eager")
    ).eval()  # fmt: skip
    with pytest.raises(UserError, match="attention uses softcap"):
        engine_of(capped)
    with pytest.raises(UserError, match="float32"):
        engine_of(qwen().to(torch.bfloat16))


def test_a_model_that_disagrees_with_its_own_forward_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = qwen()
    forward = model.forward
    skewed: Any = lambda *a, position_ids=None, **k: forward(  # noqa: E731
        *a, position_ids=None if position_ids is None else 3 * position_ids, **k
    )
    monkeypatch.setattr(model, "forward", skewed)
    with pytest.raises(UserError, match="through the slots are off"):
        engine_of(model)


def test_prefill_batches_cover_every_row_once_and_split_where_padding_is_waste() -> None:
    lengths = [4] * 40 + [6] * 20 + [300, 310, 2000]
    batches = list(ragged_batches(lengths))
    assert [i for batch in batches for i in range(batch.start, batch.stop)] == list(range(len(lengths)))
    assert batches[0] == slice(0, 60)
    assert len(batches) == 3
    assert list(ragged_batches([])) == []
