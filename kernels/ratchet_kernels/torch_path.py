"""The PyTorch path: tiles of the vocabulary, and in each of them tiles of rows.

for each vocabulary tile: for each row tile: logits [rows, columns] -> running log-sum-exp | both gradients

A row's bits depend on the shape and the alignment of the matrix product that it is in, not on its place there: so every
row tile has `ROWS` rows, the last one filled with zeros, starts at 64 bytes, and has rows of a multiple of 64 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ratchet_kernels.types import Rows, Statistics, Upstream

ROWS = 128
COLUMNS = 2048
_ALIGNED = 16  # float32 numbers in 64 bytes
_FLOOR = -60.0  # finite, so that 0 * -inf gives no NaN, and above the -87 from which exp is 15 times slower on a CPU
_NOTHING = 1e-24  # what is smaller, such as e^_FLOOR, becomes 0
_LOWEST = torch.finfo(torch.float32).min


class _Tile(NamedTuple):
    """`filled` rows, of all those that there are, for buffers of ROWS rows."""

    rows: slice
    filled: int


def forward(rows: Rows, lm_head: Tensor) -> Statistics:
    """Return the statistics of each row; see `Path`."""
    count, device = len(rows.targets), rows.hidden.device
    padded = -(-count // ROWS) * ROWS
    top = torch.full((padded,), _LOWEST, device=device)
    total, weighted, chosen = torch.zeros(3, padded, device=device).unbind(0)
    for first, head in _head_tiles(lm_head):
        logits, weights = torch.empty(2, ROWS, len(head), device=device).unbind(0)
        for tile in _row_tiles(count):
            _scaled_logits(rows, head, tile, out=logits)
            _choose(logits, rows.targets[tile.rows] - first, chosen[tile.rows])
            part = slice(tile.rows.start, tile.rows.start + ROWS)
            _advance(logits, weights, top[part], total[part], weighted[part])
    log_total = total.log()
    logprobs, entropy = (chosen - top) - log_total, log_total - weighted / total
    return Statistics(*(values[:count] for values in (logprobs, entropy, top, log_total)))


def backward(
    rows: Rows,
    lm_head: Tensor,
    statistics: Statistics,
    upstream: Upstream,
    *,
    need_hidden: bool,
    need_head: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients by hidden[M,H] and lm_head[V,H], None where not needed; see `Path`."""
    count, width, device = len(rows.targets), _aligned(lm_head.shape[1]), lm_head.device
    grad_hidden = torch.zeros(-(-count // ROWS) * ROWS, width, device=device) if need_hidden else None
    grad_head = torch.empty_like(lm_head, memory_format=torch.contiguous_format) if need_head else None
    for first, head in _head_tiles(lm_head):
        grad_tile = torch.zeros(len(head), width, device=device) if need_head else None
        logits, weights = torch.empty(2, ROWS, len(head), device=device).unbind(0)
        for tile in _row_tiles(count):
            hidden = _scaled_logits(rows, head, tile, out=logits)
            grad = _grad_logits(logits, weights, rows, statistics, upstream, tile, first)
            if grad_hidden is not None:
                grad_hidden[tile.rows.start : tile.rows.start + ROWS].addmm_(grad, head)
            if grad_tile is not None:
                grad_tile.addmm_(grad[: tile.filled].T, hidden[: tile.filled])
        if grad_head is not None and grad_tile is not None:
            grad_head[first : first + len(head)] = grad_tile[:, : lm_head.shape[1]]
    return None if grad_hidden is None else grad_hidden[:count, : lm_head.shape[1]], grad_head


def _advance(logits: Tensor, weights: Tensor, top: Tensor, total: Tensor, weighted: Tensor) -> None:
    """Move the running maximum, sum of e^(z - top), and sum of e^(z - top) (z - top) on by a tile of logits."""
    new = torch.maximum(top, logits.amax(dim=1))
    shift = (top - new).clamp_(min=_FLOOR)
    decay = shift.exp()
    _exp(logits.sub_(new[:, None]), out=weights)
    weighted.addcmul_(shift, total).mul_(decay).add_(logits.mul_(weights).sum(dim=1))
    total.mul_(decay).add_(weights.sum(dim=1))
    top.copy_(new)


def _exp(values: Tensor, out: Tensor) -> None:
    """Write e^values to out, 0 where that is below `_NOTHING`; raise values to `_FLOOR`. NaN stays NaN."""
    torch.exp(values.clamp_(min=_FLOOR), out=out)
    torch.threshold_(out, _NOTHING, 0.0)


def _choose(logits: Tensor, targets: Tensor, chosen: Tensor) -> None:
    """Write the logit of each target that lies in this tile."""
    inside = (targets >= 0) & (targets < logits.shape[1])
    picked = logits[: len(targets)].gather(1, torch.where(inside, targets, 0)[:, None])[:, 0]
    chosen.copy_(torch.where(inside, picked, chosen))


def _grad_logits(
    logits: Tensor,
    weights: Tensor,
    rows: Rows,
    statistics: Statistics,
    upstream: Upstream,
    tile: _Tile,
    first: int,
) -> Tensor:
    """Return the gradient by the unscaled logits [ROWS, columns], in one of the two buffers given."""
    top, log_total, entropy, inverse = (
        _fill(values[tile.rows])[:, None]
        for values in (statistics.top, statistics.log_total, statistics.entropy, rows.inverse)
    )
    _exp(logits.sub_(top).sub_(log_total), out=weights)
    by_logprob = None if upstream.logprobs is None else _fill(upstream.logprobs[tile.rows])[:, None]
    if upstream.entropy is not None:
        logits.add_(entropy).mul_(_fill(upstream.entropy[tile.rows])[:, None])
        weights.mul_(logits if by_logprob is None else logits.add_(by_logprob)).neg_()
    elif by_logprob is not None:
        weights.mul_(-by_logprob)
    if by_logprob is not None:
        _add_at(weights, rows.targets[tile.rows] - first, by_logprob)
    return weights.mul_(inverse)


def _add_at(grad: Tensor, targets: Tensor, values: Tensor) -> None:
    """Add values[n,1] to grad[n, target], one cell a row, where the target lies in this tile."""
    inside = (targets >= 0) & (targets < grad.shape[1])
    column = torch.where(inside, targets, 0)[:, None]
    kept = grad[: len(targets)].gather(1, column)
    grad[: len(targets)].scatter_(1, column, torch.where(inside[:, None], kept + values[: len(targets)], kept))


def _scaled_logits(rows: Rows, head: Tensor, tile: _Tile, out: Tensor) -> Tensor:
    """Write hidden head^T / temperature of the tile to out[ROWS, columns]; return its hidden[ROWS, width], float32."""
    hidden = _fill(_pad_width(rows.hidden[tile.rows].float()))
    torch.mm(hidden, head.T, out=out)
    out.mul_(_fill(rows.inverse[tile.rows])[:, None])
    return hidden


def _head_tiles(lm_head: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield (first row, rows of the head in float32, contiguous, of aligned width)."""
    for first in range(0, len(lm_head), COLUMNS):
        yield first, _pad_width(lm_head[first : first + COLUMNS].float()).contiguous()


def _row_tiles(count: int) -> Iterator[_Tile]:
    for first in range(0, count, ROWS):
        last = min(first + ROWS, count)
        yield _Tile(slice(first, last), last - first)


def _fill(values: Tensor) -> Tensor:
    """Return values[n,...] as [ROWS,...], contiguous and aligned, zeros after the n rows."""
    if len(values) == ROWS and values.is_contiguous() and values.data_ptr() % (4 * _ALIGNED) == 0:
        return values
    filled = values.new_zeros(ROWS, *values.shape[1:])
    filled[: len(values)] = values
    return filled


def _pad_width(values: Tensor) -> Tensor:
    missing = _aligned(values.shape[1]) - values.shape[1]
    return torch.nn.functional.pad(values, (0, missing)) if missing else values


def _aligned(width: int) -> int:
    return -(-width // _ALIGNED) * _ALIGNED
