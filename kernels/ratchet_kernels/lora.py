"""A frozen linear layer with a low-rank adapter beside it, as matrix products alone.

x[..., I] -> x W^T + bias + s (x A^T) B^T [..., O]

Written as modules, the adapter costs three more passes over [..., O] in the forward (scale, add, and the add of two
input gradients in the backward): on a small model they cost as much as the products. Here each is folded into one.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor


def lora_linear(x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """Return x W^T + bias + scaling (x A^T) B^T.

    x[..., I], weight[O, I], bias[O] or None, a[r, I], b[O, r], all of one floating type. Differentiable in x, a and b;
    weight and bias are frozen and get no gradient (ValueError where they ask for one).
    """
    if weight.requires_grad or (bias is not None and bias.requires_grad):
        raise ValueError("lora_linear's weight and bias are frozen: call requires_grad_(False) on them")
    rows = x.reshape(-1, x.shape[-1])
    out = cast("Tensor", _LoraLinear.apply(rows, weight, bias, a, b, scaling))
    return out.view(*x.shape[:-1], weight.shape[0])


class _LoraLinear(torch.autograd.Function):
    """Saves x and x A^T."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scaling: float
    ) -> Tensor:
        down = x @ a.T
        out = torch.nn.functional.linear(x, weight, bias)
        ctx.save_for_backward(x, down, weight, a, b)
        ctx.scaling = scaling
        return out.addmm_(down, b.T, alpha=scaling)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, Tensor | None, Tensor | None, None]:
        (grad,) = grads
        x, down, weight, a, b = ctx.saved_tensors
        need_x, _, _, need_a, need_b, _ = ctx.needs_input_grad
        grad_down = (grad @ b).mul_(ctx.scaling)
        grad_x = (grad @ weight).addmm_(grad_down, a) if need_x else None
        grad_a = grad_down.T @ x if need_a else None
        grad_b = (grad.T @ down).mul_(ctx.scaling) if need_b else None
        return grad_x, None, None, grad_a, grad_b, None
