"""Replay of the rollouts' routing: a policy of experts is trained through the experts that its tokens were sampled by.

recorded ids [B*T,layers,per_token] -> in each router's place: the live weights of those ids -> the experts

A near tie between two experts falls one way in the sampler and the other in the trainer, and the token's
log-probability jumps by far more than rounding does. Replayed, the choice is the sampler's, and the weights are the
trainer's, with their gradient (Ma et al. 2025, "rollout routing replay").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from data_contracts.errors import UserError
from data_contracts.records import Segment
from models.routing import Router, expert_weights, routers_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LIVE = -1
"""In place of an id: the token was not recorded, the router's own choice holds."""


def recorded_experts(segments: Sequence[Segment], starts: Sequence[int], lengths: Sequence[int]) -> Tensor | None:
    """Return ids [starts[-1],layers,per_token]; segment b's first `lengths[b]` tokens lie from `starts[b]` on.

    None where no segment has any. Segments of another shape than the rest are a UserError.
    """
    routed = [segment for segment in segments if segment.routed_experts]
    if not routed:
        return None
    shapes = {(len(segment.routed_experts[0]), segment.experts_per_token or 0) for segment in routed}  # type: ignore[index]
    width, per_token = shapes.pop()
    if shapes or not per_token:
        raise UserError("segments of one batch were routed by different models: give segments that one model sampled.")
    ids = torch.full((starts[-1], width), LIVE, dtype=torch.long)
    for segment, start, length in zip(segments, starts, lengths, strict=False):
        if segment.routed_experts:
            ids[start : start + length] = torch.tensor(segment.routed_experts[:length], dtype=torch.long)
    return ids.view(starts[-1], -1, per_token)


class Replay:
    """Puts recorded ids in place of what a model's routers choose; a dense model has no routers, nothing is hooked."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._routers = routers_of(model)
        self._kind = model.config.model_type
        self._ids: Tensor | None = None
        for layer, router in enumerate(self._routers):
            router.module.register_forward_hook(self._hook(layer, router))

    def use(self, ids: Tensor | None) -> None:
        """Replay these ids [tokens,layers,per_token] from now on; None: the routers' own choice.

        They stay until the next ones, not for one forward: gradient checkpointing runs the layers again in backward.
        """
        if ids is not None:
            self._check(ids)
        self._ids = ids

    def _check(self, ids: Tensor) -> None:
        ours = [(router.per_token, router.experts) for router in self._routers]
        layers, per_token = ids.shape[1:]
        if layers != len(ours) or any(per_token != most or int(ids.max()) >= experts for most, experts in ours):
            raise UserError(
                f"the segments' routing ({layers} layers, {per_token} experts a token, ids up to {int(ids.max())}) is "
                f"not of this {self._kind} ({len(ours)} layers with a router that can be replayed): give segments that "
                "this model sampled, or set training.replay_routing = false."
            )

    def _hook(self, layer: int, router: Router) -> Any:
        def replace(module: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> Any:
            if self._ids is None:
                return None
            logits, weights, live = output
            recorded = self._ids[:, layer]
            chosen = torch.where(recorded == LIVE, live, recorded)
            return logits, expert_weights(logits, chosen, normalised=router.normalised).to(weights), chosen

        return replace
