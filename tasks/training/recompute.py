"""A second opinion on segments' log-probabilities: a plain forward, away from the engine and from DeepSpeed.

base, policy folder, segments -> Score of each, at any temperature and in any float type
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from ratchet_kernels import token_logprobs

from data_contracts.records import Segment
from models.policy import Base, is_whole, load_base, merged_model
from tasks.training.packing import sampled_positions
from tasks.training.scores import Score


class Recompute:
    """One policy version (None: the base alone), whole in memory, to score segments one by one."""

    def __init__(self, base: Base, policy: Path | None, dtype: torch.dtype = torch.float32) -> None:
        whole = policy is not None and is_whole(policy)
        model: Any = load_base(policy).model if whole and policy is not None else merged_model(base, policy)
        self._model = model.to(dtype=dtype)

    def scores(self, segments: Sequence[Segment], temperature: float) -> list[Score]:
        """Return each segment's log-probabilities and entropies at its sampled tokens (nats)."""
        return [self._score(segment, temperature) for segment in segments]

    @torch.no_grad()
    def _score(self, segment: Segment, temperature: float) -> Score:
        ids = torch.tensor(segment.token_ids, device=self._model.device)
        at = torch.tensor(sampled_positions(segment), dtype=torch.long, device=ids.device)
        hidden = self._model.get_decoder()(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        head = self._model.get_output_embeddings().weight
        found = token_logprobs(hidden[at - 1], head, ids[at], temperature=temperature)
        return Score(found.logprobs.double().tolist(), found.entropy.double().tolist())
