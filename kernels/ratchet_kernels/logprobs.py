"""Log-probability and entropy of chosen tokens, without the N x V logits ever being whole in memory.

hidden[N,H], lm_head[V,H], targets[N] -> chunks of rows -> logprobs[N], entropy[N]

The forward keeps one number a row (the log-sum-exp) and the entropy; the backward computes the chunk's logits again.
With z = h W^T / T, p = softmax(z), L = log p[target] and S = -sum p log p:
    dL/dz = onehot(target) - p          dS/dz = -p (log p + S)
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

Backend = Literal["auto", "torch", "triton"]
_CHUNK_ELEMENTS = 1 << 24
_MINIMUM_ROWS = 16


class TokenLogprobs(NamedTuple):
    """float32, one a target, both differentiable in `hidden` and `lm_head`; nats."""

    logprobs: Tensor
    entropy: Tensor


def token_logprobs(
    hidden: Tensor,
    lm_head: Tensor,
    targets: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    backend: Backend = "auto",
) -> TokenLogprobs:
    """Return log softmax(hidden lm_head^T / temperature) at `targets`, and the entropy of that distribution.

    Shapes: hidden[N,H], lm_head[V,H], targets[N] (integers), temperature a positive number or [N]. N may be 0.
    Accumulates in float32 whatever the inputs' type. Errors: IndexError for a target outside 0..V-1,
    ValueError for shapes that do not fit, a temperature that is not positive, or an unknown backend.
    """
    _check_backend(backend)
    _check_shapes(hidden, lm_head, targets)
    _check_targets(targets, lm_head.shape[0])
    inverse = _inverse_temperature(temperature, hidden)
    logprobs, entropy = cast("tuple[Tensor, Tensor]", _Chunked.apply(hidden, lm_head, targets.long(), inverse))
    return TokenLogprobs(logprobs, entropy)


def chunk_rows(vocabulary: int) -> int:
    """Return how many rows are worked on at once: as many as fit in 64 MiB of float32 logits, at least 16."""
    return max(_MINIMUM_ROWS, _CHUNK_ELEMENTS // max(1, vocabulary))


class _Chunked(torch.autograd.Function):
    """Rows in chunks; saves the inputs and two numbers a row."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, lm_head: Tensor, targets: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        count = hidden.shape[0]
        logprobs, entropy, normaliser = torch.empty(3, count, device=hidden.device).unbind(0)
        rows = chunk_rows(lm_head.shape[0])
        for part in _slices(count, rows):
            logits = _scaled_logits(hidden[part], lm_head, inverse[part])
            chosen = logits.gather(1, targets[part, None])[:, 0]
            top = logits.amax(dim=1, keepdim=True)
            logits -= top
            chosen = chosen - top[:, 0]
            weights = logits.exp()
            total = weights.sum(dim=1)
            log_total = total.log()
            logprobs[part] = chosen - log_total
            # S = log sum exp(z) - sum p z; a logit of -inf has p = 0 and adds nothing
            entropy[part] = log_total - weights.mul_(logits.clamp_(min=-1e30)).sum(dim=1) / total
            normaliser[part] = log_total + top[:, 0]
        ctx.save_for_backward(hidden, lm_head, targets, inverse, normaliser, entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, lm_head, targets, inverse, normaliser, entropy = ctx.saved_tensors
        grad_logprobs, grad_entropy = grads
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_head = torch.zeros(lm_head.shape, device=lm_head.device) if ctx.needs_input_grad[1] else None
        for part in _slices(hidden.shape[0], chunk_rows(lm_head.shape[0])):
            logits = _scaled_logits(hidden[part], lm_head, inverse[part])
            grad = _grad_logits(
                logits - normaliser[part, None], targets[part], entropy[part], grad_logprobs[part], grad_entropy[part]
            )
            grad *= inverse[part, None]
            if grad_hidden is not None:
                grad_hidden[part] = _matmul(grad, lm_head)
            if grad_head is not None:
                grad_head += grad.T @ hidden[part].float()
        return grad_hidden, None if grad_head is None else grad_head.to(lm_head.dtype), None, None


def _grad_logits(
    logprobs: Tensor, targets: Tensor, entropy: Tensor, grad_logprobs: Tensor, grad_entropy: Tensor
) -> Tensor:
    """Return the gradient by the scaled logits [n,V], given log p [n,V]; see the module's formulas."""
    probabilities = logprobs.exp()
    # (log p + S) first, its -inf (p = 0) made finite so that 0 * inf gives no NaN
    factor = logprobs.clamp_(min=-1e30).add_(entropy[:, None]).mul_(grad_entropy[:, None]).add_(grad_logprobs[:, None])
    grad = probabilities.mul_(factor).neg_()
    grad[torch.arange(len(targets), device=grad.device), targets] += grad_logprobs
    return grad


def _scaled_logits(hidden: Tensor, lm_head: Tensor, inverse: Tensor) -> Tensor:
    return _matmul(hidden, lm_head.T).mul_(inverse[:, None])


def _matmul(left: Tensor, right: Tensor) -> Tensor:
    """Multiply with float32 accumulation and a float32 result."""
    return left.float() @ right.float()


def _slices(count: int, rows: int) -> list[slice]:
    return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]


def _inverse_temperature(temperature: float | Tensor, hidden: Tensor) -> Tensor:
    count = hidden.shape[0]
    values = torch.as_tensor(temperature, dtype=torch.float32, device=hidden.device)
    if values.ndim == 0:
        values = values.expand(count)
    if values.shape != (count,):
        raise ValueError(f"temperature has shape {tuple(values.shape)}: give a number or one value a row ({count})")
    if not bool((values > 0).all()):
        raise ValueError("temperature must be positive: greedy sampling (0) has no log-probabilities to train on")
    return values.reciprocal()


def _check_backend(backend: str) -> None:
    if backend == "triton":
        raise ValueError("backend='triton': only the torch path exists in this version; write 'auto' or 'torch'")
    if backend not in ("auto", "torch"):
        raise ValueError(f"backend={backend!r} is unknown: write 'auto' or 'torch'")


def _check_shapes(hidden: Tensor, lm_head: Tensor, targets: Tensor) -> None:
    fits = hidden.ndim == 2 and lm_head.ndim == 2 and targets.ndim == 1
    if not fits or hidden.shape[1] != lm_head.shape[1] or hidden.shape[0] != targets.shape[0]:
        shapes = [tuple(t.shape) for t in (hidden, lm_head, targets)]
        raise ValueError(f"hidden[N,H], lm_head[V,H], targets[N] do not fit together: {shapes}")


def _check_targets(targets: Tensor, vocabulary: int) -> None:
    if targets.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(targets))
    if low < 0 or high >= vocabulary:
        raise IndexError(f"targets run from {low} to {high}, the head has rows 0 to {vocabulary - 1}")
