"""What samples: token ids in, token ids with their log-probabilities out, for a named policy version.

SampleRequest -> Engine -> Completion
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np


class EngineError(RuntimeError):
    """The engine, not the policy, failed: an infrastructure failure of the sessions it names (all, when empty)."""

    def __init__(self, message: str, sessions: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.sessions = sessions


class ContextFull(EngineError):
    """The session's tokens fill the context of the model: there is no room to sample even one more."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One turn to sample. `token_ids` is the whole context, `max_tokens` what may be sampled after it.

    `temperature` 0 takes the most likely token; its log-probability is then that of the distribution at temperature 1.
    `seed` starts the session's own noise at its first request and is not looked at again until the session closes.
    """

    session: str
    policy_version: str
    token_ids: Sequence[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Routing:
    """The experts, of so many, that a model of experts sent each token of a session to: [tokens, layers, per token].

    Only layers that have a router count. The last sampled token has none: no forward read it yet.
    """

    chosen: np.ndarray
    experts: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled. A stop token, when sampled, is the last of `token_ids`.

    `logprobs` (nats) are aligned with `token_ids`, under the exact distribution each was drawn from (temperature and
    top-p included). `cached_tokens` counts the context tokens whose keys and values the session still held.
    `seconds` is the wall-clock time from the request to the completion. `routing` covers the context and all sampled
    tokens but the last; None of a dense model, or where the engine does not tell.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]
    policy_version: str
    policy_digest: str
    prompt_tokens: int
    cached_tokens: int
    seconds: float
    routing: Routing | None = None


@dataclass(frozen=True, slots=True)
class Pressure:
    """How full the engine's KV-cache is (0 to 1, of several servers the fullest), and its preemptions so far."""

    kv_use: float
    preemptions: int


class Engine(Protocol):
    """Samples for several policy versions at once. A version's name stands for its weights and is never reused."""

    def load_adapter(self, version: str, path: Path | None) -> str:
        """Serve the base with the adapter at `path` (None: the base alone) as `version`; returns its digest."""
        ...

    def drop_adapter(self, version: str) -> None: ...

    def submit(self, request: SampleRequest) -> None:
        """Ask for one turn. One request a session at a time. Raises `ContextFull`, `EngineError`."""
        ...

    def poll(self) -> list[tuple[str, Completion]]:
        """Make some progress; returns (session, completion) of the turns that ended, in a reproducible order."""
        ...

    def close_session(self, session: str) -> None:
        """Forget a session, also one with a request under way; an unknown one is no error."""
        ...

    def pressure(self) -> Pressure | None:
        """A new reading of the KV-cache, each once; None where there is none."""
        ...

    def teacher_force(self, version: str, token_ids: Sequence[int]) -> list[float]:
        """Log-probability of token i+1 given tokens 0..i at temperature 1, for each i: one fewer than the tokens."""
        ...


@runtime_checkable
class Streaming(Protocol):
    """An engine that shows a turn while it is sampled."""

    def so_far(self, session: str) -> list[int]:
        """Tokens that the session's turn under way has sampled; none where it has no such turn."""
        ...
