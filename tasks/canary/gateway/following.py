"""The gateway keeps up with the registry, by poll: a new champion, a trial that begins, moves on or ends.

every `poll_seconds`: Registry.serving() -> Gateway.follow -> Gateway.tidy;  a failure keeps what is served, and is said
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from mlflow.exceptions import MlflowException

from data_contracts.errors import UserError
from models.release import Release, ReleaseDamaged
from models.trial import Serving
from tasks.canary.gateway.resuming import open_sessions
from tasks.canary.gateway.server import Gateway
from tasks.canary.routing import Served, served_of
from tasks.rollout.engine import EngineError

_LOG = logging.getLogger(__name__)
_FAILURES = (MlflowException, ReleaseDamaged, EngineError, UserError, OSError, ValueError)
"""What reading or loading a release may raise: a database that is away, files that are gone, weights that differ."""


class Follower:
    """Follows from `with` to its end; `read` and `release` ask the registry for what serves, and for one release."""

    def __init__(
        self, gateway: Gateway, read: Callable[[], Serving | None], release: Callable[[int], Release], audit: Path
    ) -> None:
        self._gateway, self._read, self._release, self._audit = gateway, read, release, audit
        self._resumed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway-follower", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._look()):
            pass

    def _look(self) -> float:
        """One look at the registry; the seconds until the next."""
        try:
            self._follow(self._read())
        except _FAILURES as error:
            self._gateway.metrics.registry_errors.inc()
            trouble = f"the registry is not followed since it failed: {error}"
            if trouble != self._gateway.trouble:
                _LOG.error("%s; what is served stays", trouble)
            self._gateway.trouble = trouble
        else:
            self._gateway.trouble = None
        return self._gateway.config.poll_seconds

    def _follow(self, serving: Serving | None) -> None:
        if serving is not None and not self._resumed:
            config = self._gateway.config
            sessions = open_sessions(self._audit, config.session_seconds, config.max_sessions)
            self._gateway.resume(sessions, self._found)
            self._resumed = True
        self._gateway.follow(serving)
        self._gateway.tidy()

    def _found(self, name: str) -> Served | None:
        """A release by its name; None for one that is gone."""
        try:
            return served_of(self._release(int(name.removeprefix("release-"))))
        except _FAILURES as error:
            _LOG.warning("%s is gone: %s", name, error)
            return None
