"""The trainer and the engine disagree a little about the same weights: measure it, correct it.

train_logprobs, rollout_logprobs, mask [B,T] -> importance weights [B,T], MismatchReport

`tis` truncates the weight (Yao et al. 2025), `icepop` drops tokens outside a range (Ling team 2025), `sequence_mask`
drops whole rows by the mean log-ratio: a product over the row would decide by its length alone. All of them drop
extreme tokens (`ratios.EXTREME`), and none lets such a token decide about others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.training.config import MismatchMethod
from tasks.training.ratios import kept, log_ratios
from tasks.training.reports import PARTS, TURNS, MismatchReport

__all__ = ["MismatchReport", "importance_weights", "mismatch_report"]


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
    `sequence_mask` 1 for every token of a row whose exp(mean log r) is inside [low, high], else 0. An extreme token
    weighs 0 (but 1 under `none`) and is not in its row's mean.
    """
    keep = mask.bool()
    log_ratio, extreme = log_ratios(train_logprobs.detach(), rollout_logprobs, keep)
    used = keep & ~extreme
    ratio = log_ratio.exp()
    if method == "none":
        return keep.to(ratio.dtype)
    if method == "tis":
        weights = ratio.clamp(low, high)
    elif method == "icepop":
        weights = kept(ratio, (ratio >= low) & (ratio <= high))
    elif method == "sequence_mask":
        mean_ratio = (log_ratio.sum(-1, keepdim=True) / used.sum(-1, keepdim=True).clamp(min=1)).exp()
        weights = ((mean_ratio >= low) & (mean_ratio <= high)).to(ratio.dtype).expand_as(ratio)
    else:
        raise ValueError(f"method {method!r} is unknown: write 'none', 'tis', 'icepop' or 'sequence_mask'")
    return kept(weights, used)


def mismatch_report(
    train_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, turns: Tensor | None = None
) -> MismatchReport:
    """Return how far the two are apart over the sampled tokens of [B,T]; computed in float64.

    `turns` [B,T] is the turn of each token, for the report by turn.
    """
    keep = mask.bool()
    tokens = int(keep.sum())
    if tokens == 0:
        return MismatchReport(tokens=0)
    grid = kept(train_logprobs.double(), keep) - kept(rollout_logprobs.double(), keep)
    diff = grid[keep]
    ratio = diff.exp()
    return MismatchReport(
        tokens=tokens,
        mean_abs_diff=float(diff.abs().mean()),
        max_abs_diff=float(diff.abs().max()),
        mult_prob_error=float(diff.abs().exp().mean()),
        kl_rollout_train=float((ratio - 1 - diff).mean()),
        kl_train_rollout=float((ratio * diff - ratio + 1).mean()),
        max_after_gap=float(grid[first_after_gap(keep)].abs().max()),
        by_position=_means(diff.abs(), _part_of_row(keep)[keep], PARTS),
        by_turn=() if turns is None else _by_turn(diff.abs(), turns[keep]),
    )


def first_after_gap(mask: Tensor) -> Tensor:
    """Where [B,T] (bool) a sampled token follows one that was not sampled."""
    keep = mask.bool()
    return keep & ~torch.nn.functional.pad(keep[..., :-1], (1, 0), value=False)


def _part_of_row(keep: Tensor) -> Tensor:
    rank = keep.cumsum(-1) - 1
    return torch.div(rank * PARTS, keep.sum(-1, keepdim=True).clamp(min=1), rounding_mode="floor")


def _by_turn(values: Tensor, turn: Tensor) -> tuple[float | None, ...]:
    turn = turn.clamp(max=TURNS - 1)
    return _means(values, turn, int(turn.max()) + 1)


def _means(values: Tensor, group: Tensor, groups: int) -> tuple[float | None, ...]:
    """Mean of the values [N] of each group 0 .. groups - 1; None for one without any."""
    members = [values[group == g] for g in range(groups)]
    return tuple(float(part.mean()) if len(part) else None for part in members)
