"""Log-ratios that no single token can blow up.

logprobs, others, mask [B,T] -> log-ratio [B,T], extreme [B,T]

Everything that takes an exponential of a difference of log-probabilities takes the difference here: the mask comes
before any arithmetic, since inf * 0 = NaN would still reach the gradient after it, and so does the bound.
"""

from __future__ import annotations

import torch
from torch import Tensor

EXTREME = 20.0
"""|log-ratio| (nats) beyond which a token tells of a fault, not of a policy: e^20 is half a billion to one."""


def log_ratios(logprobs: Tensor, others: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return log(p / p_other) [B,T], 0 where masked or extreme, and where [B,T] (bool) it was extreme.

    Carries the gradient of `logprobs` alone, which is 0 at extreme tokens. An unmasked NaN stays one.
    """
    keep = mask.bool()
    difference = kept(logprobs, keep) - kept(others, keep).detach()
    extreme = difference.detach().abs() > EXTREME
    return kept(difference, ~extreme), extreme


def kept(values: Tensor, keep: Tensor) -> Tensor:
    """Return `values` where `keep` (bool), 0 elsewhere, in value and gradient."""
    return torch.where(keep, values, 0)
