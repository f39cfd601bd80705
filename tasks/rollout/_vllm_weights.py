"""Full weights on every server of an engine: put in place where a probe proves that, else by a restart.

weights -> reload, proven on each server -> the same Fleet;  not proven -> new servers -> another Fleet

Only a proof tells: where vLLM has packed its layers at the start, as on some CPUs, a reload answers 200 and then
serves neither the old weights nor the new ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from data_contracts.errors import UserError
from tasks.rollout._vllm_client import VllmClient
from tasks.rollout._vllm_fleet import Fleet
from tasks.rollout.engine import EngineError
from tasks.rollout.vllm_server import Endpoint

Restart = Callable[[Path | None], Sequence[Endpoint]]
"""weights (None: the base's) -> servers that hold them, in the place of those that ran."""
Reload = Callable[[VllmClient, Path], None]
"""Puts weights into one server; raises EngineError where that is not proven."""

_LOG = logging.getLogger(__name__)


class Holding:
    """What the servers hold: `weights`, None for the base's own. With `reload`, restarts are the second choice."""

    def __init__(self, restart: Restart | None, *, reload: bool) -> None:
        self.weights: Path | None = None
        self._restart, self._reload, self._announced = restart, reload, False

    def require_ours(self) -> Restart:
        """UserError where the servers are not ours to restart: a reload that fails could not be made good."""
        if self._restart is None:
            raise UserError(
                "full weights need servers that we may restart: leave rollout.vllm.endpoints out to have them started, "
                "or train an adapter"
            )
        return self._restart

    def change(self, weights: Path | None, fleet: Fleet, reload: Reload) -> Fleet:
        """Have every server hold `weights`; returns the fleet that does. Raises EngineError where none comes up."""
        if not self._reloaded(weights, fleet, reload):
            fresh = Fleet(self._restarted(weights), fleet.turn_seconds)
            fleet.close()
            fleet = fresh
        self.weights = weights
        return fleet

    def _reloaded(self, weights: Path | None, fleet: Fleet, reload: Reload) -> bool:
        """Whether all servers are proven to hold the weights; after one that is not, none is tried again."""
        if not self._reload or weights is None:
            return False
        try:
            for client in fleet.living:
                reload(client, weights)
        except EngineError as error:
            _LOG.warning("full weights can not be put in place here, servers are restarted for them: %s", error)
            self._reload = False
        return self._reload and bool(fleet.living)

    def _restarted(self, weights: Path | None) -> Sequence[Endpoint]:
        started = time.monotonic()
        endpoints = self.require_ours()(weights)
        if not self._announced:
            self._announced = True
            seconds = time.monotonic() - started
            _LOG.warning(
                "servers restart for full weights: %.0f s a version, and their prefix caches are lost", seconds
            )
        return endpoints
