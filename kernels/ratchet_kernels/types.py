"""What passes between `token_logprobs` and its two paths; M is the number of rows that have a target."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class TokenLogprobs(NamedTuple):
    """float32, one a target, both differentiable in `hidden` and `lm_head`; nats."""

    logprobs: Tensor
    entropy: Tensor


class Rows(NamedTuple):
    """hidden[M,H], targets[M] (int64), inverse[M]: one over the temperature (float32)."""

    hidden: Tensor
    targets: Tensor
    inverse: Tensor


class Statistics(NamedTuple):
    """What the forward leaves, each [M] in float32; the log-sum-exp is top + log_total, apart to keep its digits."""

    logprobs: Tensor
    entropy: Tensor
    top: Tensor
    log_total: Tensor


class Upstream(NamedTuple):
    """The gradients by the two outputs, [M] in float32; None for an output that nothing used."""

    logprobs: Tensor | None
    entropy: Tensor | None


class Path(Protocol):
    """A module that computes tile by tile; gradients by hidden[M,H] in float32, by the head in the head's type."""

    def forward(self, rows: Rows, lm_head: Tensor) -> Statistics: ...

    def backward(
        self,
        rows: Rows,
        lm_head: Tensor,
        statistics: Statistics,
        upstream: Upstream,
        *,
        need_hidden: bool,
        need_head: bool,
    ) -> tuple[Tensor | None, Tensor | None]: ...
