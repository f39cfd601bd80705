"""Muon: the optimizer of the starter's warm-up.

gradient -> momentum -> nearest orthogonal matrix -> step

Of the library's own (torch.optim.Muon) it differs in the precision of the iteration alone: that one multiplies in
bfloat16, which on a CPU takes 40 times as long as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalised(matrices: Tensor, steps: int = 5) -> Tensor:
    """Matrices [N, R, C], R <= C, with their singular values moved to about 1 (0.7 to 1.2), by Newton-Schulz iteration.

    The quintic's coefficients are Jordan et al.'s (Muon, 2024): steep at zero, so that five steps do.
    """
    x = matrices / (matrices.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; for matrices only.

    The step is scaled by 0.2 sqrt(max(R, C)) (Liu et al. 2025), which gives it the size of AdamW's: rates carry over.
    """

    def __init__(
        self, matrices: Iterable[Tensor], lr: float, *, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Step every matrix that has a gradient; those of one shape are orthogonalised together."""
        if closure is not None:
            raise ValueError("Muon takes no closure: compute the gradients before the step")
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike.setdefault(matrix.shape, []).append(matrix)
            for shape, matrices in alike.items():
                updates = torch.stack([self._momentum(matrix, group["momentum"]) for matrix in matrices])
                tall = shape[0] > shape[1]
                turned = orthogonalised(updates.mT if tall else updates)
                size = group["lr"] * 0.2 * max(shape) ** 0.5
                for matrix, update in zip(matrices, turned.mT if tall else turned, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-size)

    def _momentum(self, matrix: Tensor, momentum: float) -> Tensor:
        buffer: Tensor = self.state[matrix].setdefault("buffer", torch.zeros_like(matrix))
        gradient = matrix.grad
        if gradient is None:
            raise ValueError("a matrix without a gradient has no momentum to take")
        buffer.lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum)
