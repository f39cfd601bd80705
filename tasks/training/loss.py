"""The policy-gradient loss, written once.

logprobs, old_logprobs, advantages, mask [B,T] -> clipped surrogate -> sum / denominator

L = - (1/D) sum_t m_t w_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t),  r_t = exp(logprob_t - old_t)
(Schulman et al. 2017, eq. 7; the separate upper clip is DAPO's, Yu et al. 2025). D is the token count of the whole
optimizer step, so that neither micro-batches nor ranks nor lengths change a token's weight.
"""

from __future__ import annotations

import torch
from torch import Tensor


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    denominator: float | Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the scalar loss of these tokens; the losses of a step's micro-batches add up to the step's loss.

    All tensors are [B,T] (any equal shape). `weights` (importance weights) multiply each token's loss and carry no
    gradient. What stands at masked positions, even inf or NaN, changes neither value nor gradient.
    """
    _check_denominator(denominator)
    keep = mask.bool()
    ratio = _ratio(logprobs, old_logprobs, keep)
    advantage = _kept(advantages, keep).to(ratio.dtype).detach()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    if weights is not None:
        surrogate = surrogate * _kept(weights, keep).to(ratio.dtype).detach()
    return -torch.where(keep, surrogate, 0).sum() / denominator


def clipped_tokens(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Tensor:
    """Return where [B,T] (bool) the clip removes the gradient: the ratio left the range on the advantage's side."""
    keep = mask.bool()
    ratio = _ratio(logprobs.detach(), old_logprobs, keep)
    above = (ratio > 1 + clip_high) & (advantages > 0)
    below = (ratio < 1 - clip_low) & (advantages < 0)
    return keep & (above | below)


def _ratio(logprobs: Tensor, old_logprobs: Tensor, keep: Tensor) -> Tensor:
    # masked before the exponential: where() after it would still let inf * 0 = NaN into the gradient
    return (_kept(logprobs, keep) - _kept(old_logprobs, keep).detach()).exp()


def _kept(values: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep, values, 0)


def _check_denominator(denominator: float | Tensor) -> None:
    if not float(denominator) > 0:
        raise ValueError(f"denominator is {float(denominator):g}: a step without sampled tokens has no loss")
