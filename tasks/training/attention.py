"""Attention over trajectories laid end to end in one row: each attends to itself alone, and nothing is padded.

q[1,heads,T,D], k and v[1,kv heads,T,D], lengths summing to T -> one causal attention a trajectory -> [1,T,heads,D]

No T x T mask is built, so that memory and work grow with the sum of squares of the lengths; what another trajectory
holds can not reach a token, not even through rounding, since it is in no product with it. Registered with transformers
as `ATTENTION`; the lengths arrive as the keyword that its own variable-length kernels use (`cu_seq_lens_q`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from data_contracts.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ATTENTION = "ratchet_packed"
_UNKNOWN = ("softcap", "s_aux", "position_bias")
_LAYERS = {"full_attention", "sliding_attention"}
_REMEDY = "set training.packed = false"


def use_packed_attention(model: PreTrainedModel) -> None:
    """Have the model attend within the given lengths; a model with layers that can not is a UserError."""
    from transformers import AttentionInterface

    kind = model.config.model_type
    if not model._supports_attention_backend:
        raise UserError(f"transformers' {kind} takes no attention function, so that it can not pack: {_REMEDY}.")
    if other := set(getattr(model.config, "layer_types", None) or ()) - _LAYERS:
        raise UserError(f"{kind} has layers that carry state across a row ({', '.join(sorted(other))}): {_REMEDY}.")
    AttentionInterface.register(ATTENTION, packed_attention)
    model.set_attn_implementation(ATTENTION)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attend causally within each trajectory, at most `sliding_window` tokens back (itself included) where given.

    query[1,heads,T,D], key and value[1,kv heads,T,D], cu_seq_lens_q[trajectories+1] on the CPU, from 0 to T ->
    [1,T,heads,D]. A mask, a soft cap or sinks would be lost: they are a UserError.
    """
    if attention_mask is not None or any(unused.get(name) is not None for name in _UNKNOWN):
        raise UserError(f"{type(module).__name__} changes its attention scores in a way that packing lacks: {_REMEDY}.")
    lengths = cu_seq_lens_q.diff().tolist()
    parts = zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
    out = [_attend(*part, scaling=scaling, dropout=dropout, window=sliding_window) for part in parts]
    return torch.cat(out, dim=2).transpose(1, 2), None


def _attend(
    query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, dropout: float, window: int | None
) -> Tensor:
    length = query.shape[2]
    mask = _window_mask(length, window, query.device) if window is not None and window < length else None
    return scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, dropout_p=dropout, enable_gqa=True
    )


def _window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """[T,T] booleans: token t sees tokens t - window + 1 to t, as transformers counts a sliding window."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril().triu(1 - window)
