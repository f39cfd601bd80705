"""The Triton path: launches the kernels of `triton_kernels`.

forward    a program for each stripe of the vocabulary and block of rows, then one for each block of rows
backward   in vocabulary tiles that fit a workspace: gradient by the logits -> hidden's and the head's products

With 16-bit inputs the gradient by the logits is rounded to that type (float32 for float16, whose range is too small)
before its two products, as a plain backward would; both products accumulate in float32.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from ratchet_kernels import triton_kernels
from ratchet_kernels.types import Rows, Statistics, Upstream

WORKSPACE_BYTES = 256 << 20
_WIDE_SHARED_MEMORY = 160 << 10  # bytes a block; the wide tiles need 144 KiB


class Tiles(NamedTuple):
    """Numbers of rows, vocabulary columns and hidden columns that a program has in hand, and its stripe's columns."""

    rows: int
    columns: int
    width: int
    stripe: int
    warps: int
    stages: int


NARROW = Tiles(rows=64, columns=64, width=32, stripe=4096, warps=4, stages=2)
MIDDLE = Tiles(rows=128, columns=128, width=32, stripe=4096, warps=8, stages=3)
WIDE = Tiles(rows=128, columns=256, width=64, stripe=4096, warps=8, stages=3)


def forward(rows: Rows, lm_head: Tensor) -> Statistics:
    """Return the statistics of each row; see `Path`."""
    count, vocabulary = len(rows.targets), len(lm_head)
    tiles, dot = _tiles(rows.hidden, lm_head), _dot_type(rows.hidden, lm_head)
    stripes = _blocks(vocabulary, tiles.stripe)
    chosen, logprobs, entropy, log_total = rows.inverse.new_empty(4, count).unbind(0)
    tops, totals, weighted = rows.inverse.new_empty(3, stripes, count).unbind(0)
    if count:
        triton_kernels.score_stripe[stripe_grid(count, vocabulary, tiles)](
            rows.hidden, lm_head, rows.targets, rows.inverse, chosen, tops, totals, weighted,
            count, vocabulary, lm_head.shape[1], *rows.hidden.stride(), *lm_head.stride(),
            STRIPE=tiles.stripe, ROWS=tiles.rows, COLUMNS=tiles.columns, WIDTH=tiles.width, DOT=dot,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
        triton_kernels.merge_stripes[(_blocks(count, tiles.rows),)](
            chosen, tops, totals, weighted, logprobs, entropy, log_total, count, stripes, ROWS=tiles.rows
        )
    return Statistics(logprobs, entropy, tops[0].clone(), log_total)


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
    hidden, (vocabulary, width) = rows.hidden, lm_head.shape
    count, tiles = len(hidden), _tiles(hidden, lm_head)
    grad_hidden = torch.zeros(count, width, device=hidden.device) if need_hidden else None
    grad_head = torch.zeros_like(lm_head, memory_format=torch.contiguous_format) if need_head else None
    if not count:
        return grad_hidden, grad_head
    bf16 = hidden.dtype == lm_head.dtype == torch.bfloat16
    workspace_type = torch.bfloat16 if bf16 else torch.float32
    columns = workspace_columns(count, vocabulary, workspace_type.itemsize, tiles)
    workspace = torch.empty(count, columns, dtype=workspace_type, device=hidden.device)
    for first in range(0, vocabulary, columns):
        head = lm_head[first : first + columns]
        grad = workspace[:, : len(head)]
        _grade(rows, lm_head, statistics, upstream, first, grad, tiles)
        if grad_hidden is not None:
            _multiply(grad, head, grad_hidden, tiles, add=True)
        if grad_head is not None:
            _multiply(grad.T, hidden, grad_head[first : first + columns], tiles, add=False)
    return grad_hidden, grad_head


def stripe_grid(count: int, vocabulary: int, tiles: Tiles) -> tuple[int]:
    """Return the forward's grid, in x alone: y and z end at 65,535."""
    return (_blocks(count, tiles.rows) * _blocks(vocabulary, tiles.stripe),)


def workspace_columns(count: int, vocabulary: int, item_bytes: int, tiles: Tiles) -> int:
    """Return how many columns of gradient by the logits are held at once: whole blocks, at least one."""
    blocks = WORKSPACE_BYTES // (count * item_bytes * tiles.columns)
    return min(max(1, blocks), _blocks(vocabulary, tiles.columns)) * tiles.columns


def _grade(
    rows: Rows,
    lm_head: Tensor,
    statistics: Statistics,
    upstream: Upstream,
    first: int,
    grad: Tensor,
    tiles: Tiles,
) -> None:
    """Write the gradient by the unscaled logits of columns first.. to grad[M, columns]."""
    count, unused = len(rows.targets), statistics.top
    grid = (_blocks(count, tiles.rows) * _blocks(grad.shape[1], tiles.columns),)
    triton_kernels.grade_logits[grid](
        rows.hidden, lm_head, rows.targets, rows.inverse, statistics.top, statistics.log_total, statistics.entropy,
        unused if upstream.logprobs is None else upstream.logprobs,
        unused if upstream.entropy is None else upstream.entropy,
        grad, first // tiles.columns, count, *lm_head.shape, *rows.hidden.stride(), *lm_head.stride(), grad.stride(0),
        ROWS=tiles.rows, COLUMNS=tiles.columns, WIDTH=tiles.width, DOT=_dot_type(rows.hidden, lm_head),
        LOGPROB=upstream.logprobs is not None, ENTROPY=upstream.entropy is not None,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip


def _multiply(a: Tensor, b: Tensor, out: Tensor, tiles: Tiles, *, add: bool) -> None:
    """out = a b, or out += a b; out's rows are contiguous."""
    (height, inner), width = a.shape, b.shape[1]
    grid = (_blocks(height, tiles.rows) * _blocks(width, tiles.columns),)
    triton_kernels.multiply[grid](
        a, b, out, height, inner, width, *a.stride(), *b.stride(), out.stride(0),
        ADD=add, ROWS=tiles.rows, COLUMNS=tiles.columns, INNER=tiles.width, DOT=_dot_type(a, b),
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip


def _tiles(hidden: Tensor, lm_head: Tensor) -> Tiles:
    """Tiles follow from types and device alone, never from a measurement: other tiles would give other bits."""
    if hidden.dtype != lm_head.dtype or hidden.dtype.itemsize != 2:
        return NARROW
    if hidden.is_cuda:
        properties: Any = torch.cuda.get_device_properties(hidden.device)  # torch's types lack the attribute
        shared = properties.shared_memory_per_block_optin
        return WIDE if shared >= _WIDE_SHARED_MEMORY else MIDDLE
    return NARROW


def _dot_type(left: Tensor, right: Tensor) -> tl.dtype:
    """Products of one 16-bit type are exact in float32; the interpreter, in NumPy, cannot multiply bfloat16."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if left.dtype == right.dtype and not interpreted:
        return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}.get(left.dtype, tl.float32)
    return tl.float32


def _blocks(size: int, block: int) -> int:
    return -(-size // block)
