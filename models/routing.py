"""Mixture-of-experts models: their routers, and how a choice of experts becomes weights.

model -> routers_of: one router a layer that has one, in the order of the forward; logits + chosen -> expert_weights
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

_PROBE_ROWS = 16


@dataclass(frozen=True, slots=True)
class Router:
    """A module hidden [N,H] -> (logits [N,experts], weights [N,per_token], chosen [N,per_token]).

    Its weights are the softmax over all experts at those chosen, and sum to 1 where `normalised`.
    """

    module: nn.Module
    experts: int
    per_token: int
    normalised: bool


def routers_of(model: PreTrainedModel) -> list[Router]:
    """Return the routers whose choice can be recorded and replayed: none of a dense model.

    Of a model that routes in another way (no softmax, a bias, groups of experts) none either, and a warning says so.
    """
    # what transformers itself would record as the logits of a router
    recorder = (model._can_record_outputs or {}).get("router_logits")
    if recorder is None:
        return []
    kind = getattr(recorder, "target_class", nn.Linear)
    modules = [module for module in model.modules() if isinstance(module, kind)]
    routers = [router for module in modules if (router := _router(module))]
    if len(routers) == len(modules):
        return routers
    name = model.config.model_type
    log.warning("the choice of experts is neither recorded nor replayed: %s has other routers than softmax", name)
    return []


def expert_weights(logits: Tensor, chosen: Tensor, *, normalised: bool) -> Tensor:
    """Return the weights [N,per_token] (float32) of the chosen experts under router logits [N,experts]."""
    weights = torch.softmax(logits, dim=-1, dtype=torch.float32).gather(-1, chosen)
    return weights / weights.sum(dim=-1, keepdim=True) if normalised else weights


@torch.no_grad()
def _router(module: nn.Module) -> Router | None:
    """What the module is, found by asking it about random hidden states; None where it is no softmax router."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    hidden = torch.randn(_PROBE_ROWS, weight.shape[1], generator=torch.Generator().manual_seed(0))
    out = module(hidden.to(weight))
    if not isinstance(out, tuple) or len(out) != 3 or out[2].is_floating_point():
        return None
    logits, weights, chosen = out
    for normalised in (True, False):
        expected = expert_weights(logits, chosen, normalised=normalised).to(weights)
        if expected.shape == weights.shape and torch.allclose(expected, weights, rtol=1e-3):
            return Router(module, logits.shape[-1], chosen.shape[-1], normalised)
    return None
