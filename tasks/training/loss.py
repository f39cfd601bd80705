"""The policy-gradient loss, written once.

logprobs, old_logprobs, advantages, mask [B,T] -> surrogate of the objective -> sum / denominator

L = - (1/D) sum_t m_t w_t S_t, with r_t = exp(logprob_t - old_t) and D the token count of the whole optimizer step, so
that neither micro-batches nor ranks nor lengths change a token's weight. S_t is the objective's:

- `clip`  min(r A, clip(r, 1 - low, 1 + high) A)   (Schulman et al. 2017; the upper clip is DAPO's, Yu et al. 2025)
- `gspo`  the same with s_t = sg[s] r_t / sg[r_t], s = exp(mean_t log r_t) over the row: one ratio for all its tokens,
  whose gradient is s times the token's own (Zheng et al. 2025, eq. 13 and 14, the form that takes advantages per token)
- `dppo`  M r A - penalty log(r)^2, M = 0 where the probability p - p_old rose by more than high and A > 0, or fell by
  more than low and A < 0: a trust region by total variation, estimated at the sampled token (Qi et al. 2026, eq. 12);
  the squared log-ratio is the soft part of it (Kimi team 2025)

A row is a segment. An extreme token (`ratios.EXTREME`) adds nothing to value and gradient, and is counted.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tasks.training.config import Objective
from tasks.training.ratios import kept, log_ratios


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
    objective: Objective = "clip",
    ratio_penalty: float = 0.0,
) -> Tensor:
    """Return the scalar loss of these tokens; the losses of a step's micro-batches add up to the step's loss.

    All tensors are [B,T] (any equal shape; rows matter to `gspo` alone). `weights` (importance weights) multiply each
    token's loss and carry no gradient. What stands at masked positions, even inf or NaN, changes neither value nor
    gradient. `clip_low` and `clip_high` bound the ratio, or for `dppo` the probability's change; `ratio_penalty` is
    for `dppo` alone. Raises ValueError for a denominator that is not positive.
    """
    _check_denominator(denominator)
    log_ratio, extreme = log_ratios(logprobs, old_logprobs, mask)
    used = mask.bool() & ~extreme
    advantage = kept(advantages, used).to(log_ratio.dtype).detach()
    ratio, held = _judged(objective, log_ratio, old_logprobs, advantage, used, clip_low, clip_high)
    if objective == "dppo":
        surrogate = kept(ratio * advantage, ~held) - ratio_penalty * log_ratio.square()
    else:
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    if weights is not None:
        surrogate = surrogate * kept(weights, used).to(log_ratio.dtype).detach()
    return -kept(surrogate, used).sum() / denominator


def base_kl(logprobs: Tensor, base_logprobs: Tensor, mask: Tensor, *, denominator: float | Tensor) -> Tensor:
    """Return KL(policy || base) per token as a scalar: sum of e^u - u - 1 over the denominator, u = base - policy.

    Never negative at any token, unbiased over the policy's own samples, and with a gradient (Schulman 2020, "k3").
    Masked and extreme tokens add nothing. All tensors are [B,T].
    """
    _check_denominator(denominator)
    away, _ = log_ratios(logprobs, base_logprobs, mask)
    return torch.expm1(-away).add(away).sum() / denominator


def clipped_tokens(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    objective: Objective = "clip",
) -> Tensor:
    """Return where [B,T] (bool) the objective removes the gradient: out of its region on the advantage's side."""
    log_ratio, extreme = log_ratios(logprobs.detach(), old_logprobs, mask)
    used = mask.bool() & ~extreme
    return _judged(objective, log_ratio, old_logprobs, advantages, used, clip_low, clip_high)[1]


def extreme_tokens(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return where [B,T] (bool) the log-ratio is extreme: those tokens are left out of the loss."""
    return log_ratios(logprobs.detach(), old_logprobs, mask)[1]


def _judged(
    objective: Objective, log_ratio: Tensor, old: Tensor, advantage: Tensor, used: Tensor, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Return the objective's ratio [B,T] (with gradient), and where it left the region on the advantage's side."""
    if objective not in _RATIOS:
        raise ValueError(f"objective {objective!r} is unknown: write {', '.join(map(repr, _RATIOS))}")
    ratio, moved = _RATIOS[objective](log_ratio, kept(old, used), used)
    return ratio, used & torch.where(advantage > 0, moved > high, (moved < -low) & (advantage < 0))


def _token_ratio(log_ratio: Tensor, old: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    ratio = log_ratio.exp()
    return ratio, ratio.detach() - 1


def _row_ratio(log_ratio: Tensor, old: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    mean = (log_ratio.sum(-1, keepdim=True) / used.sum(-1, keepdim=True).clamp(min=1)).detach()
    ratio = (mean + log_ratio - log_ratio.detach()).exp()
    return ratio, ratio.detach() - 1


def _token_probability(log_ratio: Tensor, old: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    ratio = log_ratio.exp()
    return ratio, (old.exp() * (ratio.detach() - 1))


_RATIOS: dict[Objective, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "clip": _token_ratio,
    "gspo": _row_ratio,
    "dppo": _token_probability,
}
"""By objective: log-ratio, old log-probabilities, used tokens -> ratio, and by how much the policy moved, [B,T]."""


def _check_denominator(denominator: float | Tensor) -> None:
    if not float(denominator) > 0:
        raise ValueError(f"denominator is {float(denominator):g}: a step without sampled tokens has no loss")
