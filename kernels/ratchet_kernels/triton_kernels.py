"""The GPU kernels: fixed tiles, loops in a fixed order, no atomics, one-dimensional grids, 64-bit offsets.

score_stripe      logits of a row block and a vocabulary stripe -> running maximum, sums, and the target's logit
merge_stripes     the stripes of a row, in order -> log-probability, entropy, log-sum-exp
grade_logits      logits of a tile -> the gradient by them, into a workspace
multiply          out = or += a b, the two products of the backward
"""

from __future__ import annotations

import triton
import triton.language as tl

FLOOR = tl.constexpr(-60.0)  # finite, so that 0 * -inf gives no NaN; below it e^x counts as 0
LOWEST = tl.constexpr(-3.4028234663852886e38)
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def _span(block, SIZE: tl.constexpr):
    return block.to(tl.int64) * SIZE + tl.arange(0, SIZE)


@triton.jit
def _floored(x):
    return tl.where(x < FLOOR, FLOOR, x)  # unlike maximum(), keeps a NaN


@triton.jit
def _exp(x):
    return tl.where(x <= FLOOR, 0.0, tl.exp(x))


@triton.jit
def _load(base, rows, columns, row_stride, column_stride, height, width):
    at = rows[:, None] * row_stride + columns[None, :] * column_stride
    return tl.load(base + at, mask=(rows[:, None] < height) & (columns[None, :] < width), other=0.0)


@triton.jit
def _logits(
    hidden, head, rows, columns, inverse, count, vocabulary, width, hs0, hs1, ws0, ws1,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """float32 [ROWS, COLUMNS]; columns from `vocabulary` on are -inf."""
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(0, tl.cdiv(width, WIDTH)):
        inner = _span(tl.full((), step, tl.int64), WIDTH)
        left = _load(hidden, rows, inner, hs0, hs1, count, width).to(DOT)
        right = _load(head, inner, columns, ws1, ws0, width, vocabulary).to(DOT)
        acc = tl.dot(left, right, acc, input_precision="ieee")
    return tl.where(columns[None, :] < vocabulary, acc * inverse[:, None], -INFINITY)


@triton.jit
def score_stripe(
    hidden, head, targets, inverses, chosen, tops, totals, weighteds,
    count, vocabulary, width, hs0, hs1, ws0, ws1,
    STRIPE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Program = (stripe, row block); tops, totals, weighteds are [stripes, count], chosen[count] has one writer."""
    blocks = tl.cdiv(count, ROWS)
    stripe = tl.program_id(0) // blocks
    rows = _span(tl.program_id(0) % blocks, ROWS)
    real = rows < count
    target = tl.load(targets + rows, mask=real, other=-1)
    inverse = tl.load(inverses + rows, mask=real, other=0.0)
    top = tl.full((ROWS,), LOWEST, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    weighted = tl.zeros((ROWS,), tl.float32)
    first = stripe * (STRIPE // COLUMNS)
    for block in range(first, tl.minimum(first + STRIPE // COLUMNS, tl.cdiv(vocabulary, COLUMNS))):
        columns = _span(tl.full((), block, tl.int64), COLUMNS)
        z = _logits(
            hidden, head, rows, columns, inverse, count, vocabulary, width, hs0, hs1, ws0, ws1,
            ROWS, COLUMNS, WIDTH, DOT,
        )  # fmt: skip
        picked = tl.sum(tl.where(columns[None, :] == target[:, None], z, 0.0), 1)
        tl.store(chosen + rows, picked, mask=real & (target // COLUMNS == block))
        new = tl.maximum(top, tl.max(z, 1))
        shift = _floored(top - new)
        z = _floored(z - new[:, None])
        e = _exp(z)
        weighted = tl.exp(shift) * (weighted + shift * total) + tl.sum(e * z, 1)
        total = tl.exp(shift) * total + tl.sum(e, 1)
        top = new
    at = stripe.to(tl.int64) * count + rows
    tl.store(tops + at, top, mask=real)
    tl.store(totals + at, total, mask=real)
    tl.store(weighteds + at, weighted, mask=real)


@triton.jit
def merge_stripes(chosen, tops, totals, weighteds, logprobs, entropies, log_totals, count, stripes, ROWS: tl.constexpr):
    """Program = row block; the merged top replaces the first stripe's."""
    rows = _span(tl.program_id(0), ROWS)
    real = rows < count
    top = tl.full((ROWS,), LOWEST, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    weighted = tl.zeros((ROWS,), tl.float32)
    for stripe in range(0, stripes):
        at = tl.full((), stripe, tl.int64) * count + rows
        stripe_top = tl.load(tops + at, mask=real, other=0.0)
        stripe_total = tl.load(totals + at, mask=real, other=1.0)
        new = tl.maximum(top, stripe_top)
        shift, stripe_shift = _floored(top - new), _floored(stripe_top - new)
        weighted = tl.exp(shift) * (weighted + shift * total)
        stripe_weighted = tl.load(weighteds + at, mask=real, other=0.0) + stripe_shift * stripe_total
        weighted += tl.exp(stripe_shift) * stripe_weighted
        total = tl.exp(shift) * total + tl.exp(stripe_shift) * stripe_total
        top = new
    log_total = tl.log(total)
    target_logit = tl.load(chosen + rows, mask=real, other=0.0)
    tl.store(logprobs + rows, (target_logit - top) - log_total, mask=real)
    tl.store(entropies + rows, log_total - weighted / total, mask=real)
    tl.store(log_totals + rows, log_total, mask=real)
    tl.store(tops + rows, top, mask=real)


@triton.jit
def grade_logits(
    hidden, head, targets, inverses, tops, log_totals, entropies, by_logprob, by_entropy, out,
    first, count, vocabulary, width, hs0, hs1, ws0, ws1, os0,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DOT: tl.constexpr,
    LOGPROB: tl.constexpr, ENTROPY: tl.constexpr,
):  # fmt: skip
    """Program = (column block, row block); the gradient by the unscaled logits from column block `first` on."""
    blocks = tl.cdiv(count, ROWS)
    block = tl.program_id(0) // blocks
    rows = _span(tl.program_id(0) % blocks, ROWS)
    columns = _span(first + block, COLUMNS)
    real = rows < count
    inverse = tl.load(inverses + rows, mask=real, other=0.0)
    z = _logits(
        hidden, head, rows, columns, inverse, count, vocabulary, width, hs0, hs1, ws0, ws1,
        ROWS, COLUMNS, WIDTH, DOT,
    )  # fmt: skip
    top = tl.load(tops + rows, mask=real, other=0.0)
    log_total = tl.load(log_totals + rows, mask=real, other=0.0)
    logp = _floored(z - top[:, None] - log_total[:, None])
    p = _exp(logp)
    grad = tl.zeros((ROWS, COLUMNS), tl.float32)
    if LOGPROB:
        target = tl.load(targets + rows, mask=real, other=-1)
        upstream = tl.load(by_logprob + rows, mask=real, other=0.0)[:, None]
        grad += tl.where(columns[None, :] == target[:, None], upstream, 0.0) - p * upstream
    if ENTROPY:
        entropy = tl.load(entropies + rows, mask=real, other=0.0)[:, None]
        grad -= p * (logp + entropy) * tl.load(by_entropy + rows, mask=real, other=0.0)[:, None]
    at = rows[:, None] * os0 + _span(block, COLUMNS)[None, :]
    inside = real[:, None] & (columns[None, :] < vocabulary)
    tl.store(out + at, (grad * inverse[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def multiply(
    a, b, out, height, inner, width, as0, as1, bs0, bs1, os0,
    ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Program = (row block, column block) of out[height, width] = a[height, inner] b[inner, width] (+ out)."""
    blocks = tl.cdiv(width, COLUMNS)
    rows = _span(tl.program_id(0) // blocks, ROWS)
    columns = _span(tl.program_id(0) % blocks, COLUMNS)
    at = rows[:, None] * os0 + columns[None, :]
    inside = (rows[:, None] < height) & (columns[None, :] < width)
    acc = tl.load(out + at, mask=inside, other=0.0) if ADD else tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(0, tl.cdiv(inner, INNER)):
        depth = _span(tl.full((), step, tl.int64), INNER)
        left = _load(a, rows, depth, as0, as1, height, inner).to(DOT)
        right = _load(b, depth, columns, bs0, bs1, inner, width).to(DOT)
        acc = tl.dot(left, right, acc, input_precision="ieee")
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside)
