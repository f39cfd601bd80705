"""Draw one token a row from logits: vectorised over the sessions, reproducible per session.

logits [N, V] + temperature, top-p, one uniform number a row -> token ids [N], log-probabilities [N]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_BLOCK = 64


class Noise:
    """A session's own stream of uniform numbers in [0, 1): the i-th sampled token takes the i-th number of its seed.

    So what a session draws does not depend on who shares the batch, nor on how its tokens fall into turns.
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._block: list[float] = []

    def draw(self) -> float:
        if not self._block:
            self._block = self._generator.random(_BLOCK).tolist()[::-1]
        return self._block.pop()


def choose(
    logits: Tensor, temperatures: Sequence[float], top_ps: Sequence[float], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Sample by the inverse of the cumulative distribution, in float64; temperature 0 takes the argmax.

    The log-probability is that of the distribution drawn from: log_softmax(logits / temperature) in float32,
    renormalised over the nucleus where top_p < 1; at temperature 0 it is the one at temperature 1. It is NaN where
    the logits are not finite numbers.
    """
    heat = torch.tensor([t or 1.0 for t in temperatures], dtype=torch.float32, device=logits.device)
    logprobs = torch.log_softmax(logits.float() / heat[:, None], dim=-1)
    if min(top_ps) < 1.0:
        logprobs = _nucleus(logprobs, torch.tensor(top_ps, dtype=torch.float64, device=logits.device))
    mass = logprobs.double().exp().cumsum(dim=-1)
    # The factor keeps rounding from reaching the total, where the search would fall off the end.
    point = torch.tensor(uniforms, dtype=torch.float64, device=logits.device) * mass[:, -1] * (1 - 2.0**-50)
    tokens = torch.searchsorted(mass, point[:, None], right=True).squeeze(-1)
    if min(temperatures) == 0.0:
        greedy = torch.tensor([t == 0.0 for t in temperatures], device=logits.device)
        tokens = torch.where(greedy, logprobs.argmax(dim=-1), tokens)
    tokens = tokens.clamp(max=logits.shape[-1] - 1)  # only rows of NaN need it
    return tokens.tolist(), logprobs.gather(1, tokens[:, None]).squeeze(-1).tolist()


def _nucleus(logprobs: Tensor, top_ps: Tensor) -> Tensor:
    """Keep the fewest most likely tokens whose mass reaches top_p (Holtzman et al. 2020), renormalised."""
    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    before = ordered.double().exp().cumsum(dim=-1) - ordered.double().exp()
    # Rows with top_p 1 are left exactly as they are, whatever rounding does to their sum.
    kept = (before < top_ps[:, None]) | (top_ps[:, None] >= 1.0)
    kept[:, 0] = True
    cut = logprobs.masked_fill(~torch.zeros_like(kept).scatter(1, order, kept), float("-inf"))
    return torch.where(top_ps[:, None] < 1.0, torch.log_softmax(cut, dim=-1), logprobs)
