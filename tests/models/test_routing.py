"""Which models have routers whose choice can be replayed, and what a choice of experts weighs."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from models.routing import expert_weights, routers_of

SHAPE: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8,
}  # fmt: skip


@pytest.mark.parametrize("normalised", [True, False])
def test_routers_are_found_in_order_with_their_shape(normalised: bool) -> None:
    config = Qwen3MoeConfig(
        **SHAPE, num_experts=6, num_experts_per_tok=3, norm_topk_prob=normalised, mlp_only_layers=[1]
    )
    model = Qwen3MoeForCausalLM(config)
    found = routers_of(model)
    assert [router.module for router in found] == [model.model.layers[layer].mlp.gate for layer in (0, 2)]
    assert {(router.experts, router.per_token, router.normalised) for router in found} == {(6, 3, normalised)}


def test_other_families_with_softmax_routers_are_known() -> None:
    model = MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=1))
    assert [(router.experts, router.per_token, router.normalised) for router in routers_of(model)] == [(4, 1, True)] * 3


def test_a_dense_model_has_none() -> None:
    assert routers_of(Qwen3ForCausalLM(Qwen3Config(**SHAPE))) == []


def test_a_router_that_is_no_softmax_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    shape = SHAPE | {"num_key_value_heads": 2}
    config = DeepseekV3Config(
        **shape, n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1,
        moe_intermediate_size=8, q_lora_rank=None, kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        assert routers_of(DeepseekV3ForCausalLM(config)) == []
    assert "neither recorded nor replayed: deepseek_v3 has other routers than softmax" in caplog.text


def test_weights_are_the_softmax_at_the_chosen_experts_and_reach_all_logits() -> None:
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
    chosen = torch.tensor([[3, 1], [6, 0], [2, 5], [4, 3], [1, 0]])
    exact = torch.softmax(logits.detach().double(), -1).gather(1, chosen)
    for normalised, expected in ((False, exact), (True, exact / exact.sum(-1, keepdim=True))):
        weights = expert_weights(logits, chosen, normalised=normalised)
        torch.testing.assert_close(weights.double(), expected, rtol=1e-6, atol=1e-7)
    (gradient,) = torch.autograd.grad(expert_weights(logits, chosen, normalised=False)[:, 0].sum(), logits)
    first = exact[:, :1]
    hit = torch.nn.functional.one_hot(chosen[:, 0], 7)
    torch.testing.assert_close(gradient.double(), first * (hit - torch.softmax(logits.detach().double(), -1)))
