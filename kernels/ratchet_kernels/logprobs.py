"""Log-probability and entropy of chosen tokens, without the N x V logits ever being whole in memory.

hidden[N,H], lm_head[V,H], targets[N] -> rows with a target -> a path's tiles -> logprobs[N], entropy[N]

The forward keeps the log-sum-exp (in two parts) and the entropy of a row; the backward computes the logits again.
With z = h W^T / T, p = softmax(z), L = log p[target] and S = -sum p log p:
    dL/dz = onehot(target) - p          dS/dz = -p (log p + S)
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ratchet_kernels import torch_path
from ratchet_kernels.types import Path, Rows, Statistics, TokenLogprobs, Upstream

Backend = Literal["auto", "torch", "triton"]


def token_logprobs(
    hidden: Tensor,
    lm_head: Tensor,
    targets: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    backend: Backend = "auto",
    ignore_index: int = -100,
) -> TokenLogprobs:
    """Return log softmax(hidden lm_head^T / temperature) at `targets`, and the entropy of that distribution.

    Shapes: hidden[N,H], lm_head[V,H], targets[N] (integers), temperature a positive number or [N]. N may be 0.
    Rows whose target is `ignore_index` are left out before the head: both outputs 0, no gradient. A head that needs no
    gradient costs none. Everything is accumulated in float32, in a fixed order: bit-equal from run to run on the same
    machine and threads, and a row's outputs and gradient are bit-equal whatever other rows come with it.
    `auto` is triton on a GPU that has it, else torch. A logit of -inf is a token of probability 0.
    Errors: IndexError for another target outside 0..V-1; ValueError for shapes that do not fit, a temperature that is
    not positive, or a backend that is unknown or cannot run here.
    """
    path = _path(backend, hidden)
    _check_shapes(hidden, lm_head, targets)
    kept = (targets != ignore_index).nonzero()[:, 0]
    _check_targets(targets[kept], lm_head.shape[0], ignore_index)
    inverse = _inverse_temperature(temperature, hidden)
    outputs = _TokenLogprobs.apply(hidden, lm_head, targets[kept].long(), inverse[kept], kept, path)
    return TokenLogprobs(*cast("tuple[Tensor, Tensor]", outputs))


class _TokenLogprobs(torch.autograd.Function):
    """Saves the inputs and four numbers a row."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, lm_head: Tensor, targets: Tensor, inverse: Tensor, kept: Tensor, path: Path
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.path = path
        statistics = path.forward(Rows(_take(hidden, kept), targets, inverse), lm_head)
        ctx.save_for_backward(hidden, lm_head, targets, inverse, kept, *statistics)
        logprobs, entropy = (_spread(values, kept, len(hidden)) for values in statistics[:2])
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        hidden, lm_head, targets, inverse, kept, *statistics = ctx.saved_tensors
        upstream = Upstream(*(None if grad is None else grad.float()[kept] for grad in grads))
        grad_hidden, grad_head = ctx.path.backward(
            Rows(_take(hidden, kept), targets, inverse),
            lm_head,
            Statistics(*statistics),
            upstream,
            need_hidden=ctx.needs_input_grad[0],
            need_head=ctx.needs_input_grad[1],
        )
        if grad_hidden is not None:
            grad_hidden = _spread(grad_hidden.to(hidden.dtype), kept, len(hidden))
        return grad_hidden, grad_head, None, None, None, None


def _take(values: Tensor, kept: Tensor) -> Tensor:
    return values if len(kept) == len(values) else values.index_select(0, kept)


def _spread(values: Tensor, kept: Tensor, count: int) -> Tensor:
    """Return values[M,...] at the rows `kept` of [count,...], 0 elsewhere."""
    if len(kept) == count:
        return values
    return values.new_zeros(count, *values.shape[1:]).index_copy_(0, kept, values)


def _path(backend: str, hidden: Tensor) -> Path:
    if backend not in ("auto", "torch", "triton"):
        raise ValueError(f"backend={backend!r} is unknown: write 'auto', 'torch' or 'triton'")
    if backend == "torch" or (backend == "auto" and not hidden.is_cuda):
        return torch_path
    installed = importlib.util.find_spec("triton") is not None
    if backend == "auto" and not installed:
        return torch_path
    if not installed:
        raise ValueError("backend='triton' needs the package triton: install it, or write backend='torch'")
    if not hidden.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            f"backend='triton' cannot run on {hidden.device}: write backend='torch', or set TRITON_INTERPRET=1 in the "
            "environment of the process to run triton's interpreter"
        )
    from ratchet_kernels import triton_path  # triton is not on every machine

    return triton_path


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


def _check_shapes(hidden: Tensor, lm_head: Tensor, targets: Tensor) -> None:
    fits = hidden.ndim == 2 and lm_head.ndim == 2 and targets.ndim == 1
    if not fits or hidden.shape[1] != lm_head.shape[1] or hidden.shape[0] != targets.shape[0]:
        shapes = [tuple(t.shape) for t in (hidden, lm_head, targets)]
        raise ValueError(f"hidden[N,H], lm_head[V,H], targets[N] do not fit together: {shapes}")


def _check_targets(targets: Tensor, vocabulary: int, ignore_index: int) -> None:
    if targets.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(targets))
    if low < 0 or high >= vocabulary:
        raise IndexError(
            f"targets run from {low} to {high}, the head has rows 0 to {vocabulary - 1} (a row to skip: {ignore_index})"
        )
