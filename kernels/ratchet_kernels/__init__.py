"""Numerics with one face: hidden states and the head in, log-probabilities and entropies of chosen tokens out."""

from __future__ import annotations

from ratchet_kernels.logprobs import TokenLogprobs, token_logprobs

__all__ = ["TokenLogprobs", "token_logprobs"]
