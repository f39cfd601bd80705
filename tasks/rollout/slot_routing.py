"""Which experts every token was sent to, kept beside the keys and values that came of it.

forward under recording() -> chosen [N,T,layers,per_token] -> RouteLog of each slot -> Completion.routing
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.routing import routers_of
from tasks.rollout.engine import Routing


class RouteRecorder:
    """Listens to a model's routers. A dense model has none: nothing is hooked, and nothing recorded."""

    def __init__(self, model: Any) -> None:
        self._routers = routers_of(model)
        self.experts = max((router.experts for router in self._routers), default=0)

    @contextmanager
    def recording(self) -> Iterator[list[Tensor]]:
        """Collect what each router chooses in a forward, [N*T, per_token] a layer."""
        chosen: list[Tensor] = []

        def keep(module: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            chosen.append(output[2])

        handles = [router.module.register_forward_hook(keep) for router in self._routers]
        try:
            yield chosen
        finally:
            for handle in handles:
                handle.remove()


def routes(chosen: list[Tensor], shape: torch.Size) -> np.ndarray | None:
    """Return the layers' choices for tokens of `shape` [N,T] as int16 [N,T,layers,per_token]; None without any."""
    if not chosen:
        return None
    stacked: np.ndarray = torch.stack(chosen, dim=1).to("cpu", torch.int16).numpy()
    return stacked.reshape(*shape, *stacked.shape[1:])


@dataclass(slots=True)
class RouteLog:
    """The choices [tokens,layers,per_token] for the tokens that a slot holds, as parts in their order."""

    parts: list[np.ndarray] = field(default_factory=list)

    def add(self, part: np.ndarray) -> None:
        self.parts.append(part)

    def cut(self, length: int) -> None:
        """Forget what was recorded after the first `length` tokens."""
        if self.parts:
            self.parts = [np.concatenate(self.parts)[:length]]

    def copy(self) -> RouteLog:
        return RouteLog(list(self.parts))

    def routing(self, experts: int) -> Routing | None:
        """What a completion carries: all of it, joined; None where nothing was recorded."""
        if not self.parts:
            return None
        self.parts = [np.concatenate(self.parts)]
        return Routing(self.parts[0], experts)
