"""The trainer and the engine disagree a little about the same weights: measure it, correct it.

train_logprobs, rollout_logprobs, mask [B,T] -> importance weights [B,T], MismatchReport

`tis` truncates the weight (Yao et al. 2025), `icepop` drops tokens outside a range (Ling team 2025), `sequence_mask`
drops whole rows by the mean log-ratio: a product over the row would decide by its length alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.training.config import MismatchMethod
from tasks.training.reports import MismatchReport

__all__ = ["MismatchReport", "importance_weights", "mismatch_report"]

_PARTS = 8


def importance_weights(
    train_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    *,
    method: MismatchMethod,
    low: float,
    high: float,
) -> Tensor:
    """Return the weight [B,T] of each token's loss, 0 where masked, without gradient.

    With r = exp(train - rollout): `none` 1; `tis` r clamped to [low, high]; `icepop` r inside [low, high], else 0;
    `sequence_mask` 1 for every token of a row whose exp(mean log r) is inside [low, high], else 0.
    """
    keep = mask.bool()
    log_ratio = _log_ratio(train_logprobs, rollout_logprobs, keep)
    ratio = log_ratio.exp()
    if method == "none":
        weights = torch.ones_like(ratio)
    elif method == "tis":
        weights = ratio.clamp(low, high)
    elif method == "icepop":
        weights = torch.where((ratio >= low) & (ratio <= high), ratio, 0)
    elif method == "sequence_mask":
        mean_ratio = (log_ratio.sum(-1) / keep.sum(-1).clamp(min=1)).exp()
        weights = ((mean_ratio >= low) & (mean_ratio <= high)).to(ratio.dtype)[..., None].expand_as(ratio)
    else:
        raise ValueError(f"method {method!r} is unknown: write 'none', 'tis', 'icepop' or 'sequence_mask'")
    return torch.where(keep, weights, 0)


def mismatch_report(train_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor) -> MismatchReport:
    """Return how far the two are apart over the sampled tokens of [B,T]; computed in float64."""
    keep = mask.bool()
    tokens = int(keep.sum())
    if tokens == 0:
        return MismatchReport(tokens=0)
    grid = _log_ratio(train_logprobs.double(), rollout_logprobs.double(), keep)
    diff = grid[keep]
    ratio = diff.exp()
    return MismatchReport(
        tokens=tokens,
        mean_abs_diff=float(diff.abs().mean()),
        max_abs_diff=float(diff.abs().max()),
        mult_prob_error=float(diff.abs().exp().mean()),
        kl_rollout_train=float((ratio - 1 - diff).mean()),
        kl_train_rollout=float((ratio * diff - ratio + 1).mean()),
        max_after_gap=_max_after_gap(grid, keep),
        by_position=_by_position(grid, keep),
    )


def _log_ratio(train: Tensor, rollout: Tensor, keep: Tensor) -> Tensor:
    # masked before any arithmetic: inf and NaN at masked positions must reach nothing
    return torch.where(keep, train.detach(), 0) - torch.where(keep, rollout.detach(), 0)


def _max_after_gap(grid: Tensor, keep: Tensor) -> float:
    before = torch.nn.functional.pad(keep[..., :-1], (1, 0), value=False)
    return float(grid[keep & ~before].abs().max())


def _by_position(grid: Tensor, keep: Tensor) -> tuple[float | None, ...]:
    rank = keep.cumsum(-1) - 1
    part = torch.div(rank * _PARTS, keep.sum(-1, keepdim=True).clamp(min=1), rounding_mode="floor")[keep]
    values = grid[keep].abs()
    return tuple(float(values[part == p].mean()) if bool((part == p).any()) else None for p in range(_PARTS))
