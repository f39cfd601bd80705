"""Trajectories laid end to end: each is computed as if it were alone, in models of full and of sliding windows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from data_contracts.errors import UserError
from models.policy import Base, LoraSpec, init_adapter, load_base
from tasks.training import distributed
from tasks.training.attention import use_packed_attention
from tasks.training.config import TrainingConfig
from tasks.training.engine import TrainingEngine
from tasks.training.learner import Batch, score, train

LENGTHS = [9, 1, 23, 4, 14]
SHAPE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.2, "pad_token_id": 0,
}  # fmt: skip


def _gemma3(seed: int = 0) -> torch.nn.Module:
    """Layers of a sliding window of 5 tokens, and of the whole trajectory, in turn."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(seed)
    kinds = ["sliding_attention", "full_attention"] * 2
    return Gemma3ForCausalLM(
        Gemma3TextConfig(**SHAPE, sliding_window=5, layer_types=kinds, query_pre_attn_scalar=8)
    ).eval()


def _qwen3() -> torch.nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    kinds = ["full_attention", "sliding_attention"] * 2
    return Qwen3ForCausalLM(
        Qwen3Config(**SHAPE, use_sliding_window=True, sliding_window=3, layer_types=kinds, max_window_layers=0)
    ).eval()


def _llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()


def _tokens() -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(0, 64, (length,), generator=draw) for length in LENGTHS]


def _packed(model: torch.nn.Module, parts: list[Tensor]) -> list[Tensor]:
    """Log-probabilities [T,V] of each part, all computed in one row."""
    use_packed_attention(model)
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    logits = model(
        input_ids=torch.cat(parts)[None], position_ids=positions[None], cu_seq_lens_q=bounds, use_cache=False
    ).logits[0]
    return list(logits.log_softmax(-1).split(LENGTHS))


@pytest.mark.parametrize("build", [_llama, _qwen3, _gemma3])
def test_packed_trajectories_compute_what_each_computes_alone(build: Callable[[], torch.nn.Module]) -> None:
    parts, alone, together = _tokens(), build(), build()
    separate = [alone(input_ids=part[None], use_cache=False).logits[0].log_softmax(-1) for part in parts]
    joint = _packed(together, parts)
    for one, other in zip(separate, joint, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-5)
    for some in (separate, joint):
        sum(logprobs[:, 3].sum() for logprobs in some).backward()
    for (name, one), (_, other) in zip(alone.named_parameters(), together.named_parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-4 * float(one.grad.abs().max()), msg=name)


@pytest.mark.parametrize("build", [_llama, _qwen3, _gemma3])
def test_a_trajectory_reaches_no_other(build: Callable[[], torch.nn.Module]) -> None:
    parts, model = _tokens(), build()
    before = _packed(model, parts)
    for changed in range(len(parts)):
        others = [(part + 1) % 64 if i == changed else part for i, part in enumerate(parts)]
        after = _packed(model, others)
        assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [i != changed for i in range(5)]


def test_a_window_reaches_back_as_far_as_it_says() -> None:
    """With one layer of a window of 5, token 9 depends on tokens 5 to 9 and on no other."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    shape = {**SHAPE, "num_hidden_layers": 1}
    config = Gemma3TextConfig(**shape, sliding_window=5, layer_types=["sliding_attention"], query_pre_attn_scalar=8)
    model = Gemma3ForCausalLM(config).eval()
    use_packed_attention(model)
    inputs = model.get_input_embeddings()(torch.arange(12)[None]).detach().requires_grad_()
    bounds = torch.tensor([0, 12])
    out = model.get_decoder()(
        inputs_embeds=inputs, position_ids=torch.arange(12)[None], cu_seq_lens_q=bounds, use_cache=False
    ).last_hidden_state
    out[0, 9].sum().backward()
    assert inputs.grad[0].abs().sum(-1).gt(0).tolist() == [5 <= t <= 9 for t in range(12)]


def test_a_model_of_windows_trains_packed_as_padded(base: Base, sample_segments, tmp_path: Path) -> None:
    distributed.start_process_group()
    shutil.copytree(base.path, tmp_path / "base", ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    _gemma3().save_pretrained(tmp_path / "base")
    gemma = load_base(tmp_path / "base")
    start = init_adapter(gemma, LoraSpec(r=4, alpha=8), tmp_path / "policy-00000", seed=0)
    segments = sample_segments(7)
    weights = [[1.0] * sum(segment.loss_mask) for segment in segments]
    scores, states = [], []
    for packed in (True, False):
        config = TrainingConfig(packed=packed, learning_rate=1e-3, warmup_steps=0, minibatches=2, mismatch="none")
        engine = TrainingEngine(gemma, start, config)
        scores.append(score(engine, segments))
        train(engine, Batch(segments, scores[-1], weights), 0)
        states.append(engine.state())
        engine.close()
    for one, other in zip(*scores, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    assert max(float((states[0][name] - states[1][name]).abs().max()) for name in states[0]) < 1e-5


def test_layers_with_a_state_are_refused() -> None:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    model = Lfm2ForCausalLM(Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"] * 2))
    with pytest.raises(UserError, match=r"lfm2 has layers that carry state across a row \(conv\): set training.packed"):
        use_packed_attention(model)


def test_a_cap_on_the_scores_is_refused() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    model = Gemma2ForCausalLM(Gemma2Config(**SHAPE))
    with pytest.raises(UserError, match=r"Gemma2Attention changes its attention scores .* set training.packed = false"):
        _packed(model, _tokens())
