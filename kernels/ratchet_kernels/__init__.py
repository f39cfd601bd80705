"""Numerics with one face: token log-probabilities and entropies from hidden states, and the fused LoRA layer."""

from __future__ import annotations

from ratchet_kernels.logprobs import token_logprobs
from ratchet_kernels.lora import lora_linear
from ratchet_kernels.types import TokenLogprobs

__all__ = ["TokenLogprobs", "lora_linear", "token_logprobs"]
