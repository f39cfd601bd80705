"""Keys and values of many sessions in preallocated slots, as a cache that transformers models write and read.

plan(rows, positions, length) -> model forward -> update() per layer: write at each row's positions, attend to a view

The attention is registered with transformers under `ATTENTION`. It folds the query heads of a group into the query axis
instead of repeating keys and values per query head: on a CPU 5 times faster for 128 rows of 300 tokens, since a decode
step spends its time reading the cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from data_contracts.errors import UserError

ATTENTION = "ratchet_slots"
_NOT_COMPUTED = ("softcap", "s_aux", "position_bias")


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of query [B, H, T, D] over key and value [B, H_kv, L, D] under an additive mask [B, 1, T, L].

    Returns [B, T, H, D]. Without a mask (a plain forward over whole sequences) it is transformers' own causal one.
    """
    if attention_mask is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, None, scaling=scaling, **kwargs)
        return plain
    if extras := [name for name in _NOT_COMPUTED if kwargs.get(name) is not None]:
        raise UserError(
            f"the base model's attention uses {', '.join(extras)}, which the in-process engine lacks"
            "; choose a base with plain softmax attention"
        )
    batch, heads, tokens, width = query.shape
    groups = heads // key.shape[1]
    folded = query.reshape(batch, key.shape[1], groups * tokens, width)
    mask = attention_mask if tokens == 1 else attention_mask.repeat(1, 1, groups, 1)
    out = torch.nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.view(batch, heads, tokens, out.shape[-1]).transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, grouped_attention)


class SlotCache(Cache):
    """Per layer keys and values [rows, kv_heads, length + 1, width]; rows and length grow when needed.

    The last column is scrap: what padding writes goes there, and nothing ever attends to it.
    """

    def __init__(self, *, length: int = 256) -> None:
        super().__init__(layers=[])
        self._rows, self._length = 0, length
        self._stores: list[tuple[Tensor, Tensor]] = []
        self._view: slice | Tensor = slice(0, 0)
        self._index = torch.zeros(0, 1, dtype=torch.long)
        self._positions = torch.zeros(0, 1, dtype=torch.long)
        self._attended = 0

    def reserve(self, rows: int, length: int) -> None:
        """Have room for `rows` slots of `length` tokens; at least doubles what has to grow."""
        if rows <= self._rows and length <= self._length:
            return
        old_rows, old_length = self._rows, self._length
        self._rows = max(rows, 2 * old_rows) if rows > old_rows else old_rows
        self._length = max(length, 2 * old_length) if length > old_length else old_length
        self._stores = [
            (self._grown(keys, old_rows, old_length), self._grown(values, old_rows, old_length))
            for keys, values in self._stores
        ]

    def plan(self, rows: slice | Tensor, positions: Tensor, length: int) -> None:
        """Set what the next forward writes and attends to.

        `rows` are its batch (a slice is read in place, an index is gathered), `positions` [B, T] where each token's
        key and value go (-1: the scrap column), and it attends to the first `length` positions.
        """
        index = torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        self._view, self._index = rows, index[:, None].to(positions.device)
        self._positions, self._attended = positions, length

    def copy_rows(self, source: list[int], target: list[int], length: int) -> None:
        """Copy the first `length` positions of each source row to its target row, all at once (swaps are fine)."""
        for store in self._stores:
            for tensor in store:
                tensor[target, :, :length] = tensor[source, :, :length]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write [B, H_kv, T, D] where the plan says; returns the planned rows' keys and values [B, H_kv, L, D]."""
        if layer_idx == len(self._stores):
            self._stores.append((self._empty(key_states), self._empty(value_states)))
        keys, values = self._stores[layer_idx]
        keys[self._index, :, self._positions] = key_states.transpose(1, 2)
        values[self._index, :, self._positions] = value_states.transpose(1, 2)
        return keys[self._view, :, : self._attended], values[self._view, :, : self._attended]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: every forward brings its own positions and mask."""
        return 0

    def _empty(self, like: Tensor) -> Tensor:
        # Zeros, since a masked value still enters as 0 * value: left-over NaN bits would spread.
        return like.new_zeros(self._rows, like.shape[1], self._length + 1, like.shape[3])

    def _grown(self, old: Tensor, rows: int, length: int) -> Tensor:
        new = self._empty(old)
        new[:rows, :, :length] = old[:, :, :length]
        return new
