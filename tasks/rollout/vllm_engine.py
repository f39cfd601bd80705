"""The engine over vLLM servers: HTTP, a LoRA adapter for each policy version, proven before it serves.

load_adapter -> every server, each proven;  submit -> the session's server;  poll -> the turns that have ended
"""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.rollout import _vllm_wire as wire
from tasks.rollout._vllm_client import VllmClient
from tasks.rollout._vllm_fleet import Fleet, ServerLost
from tasks.rollout._vllm_proof import Expected, probe_request, prove
from tasks.rollout.engine import Completion, ContextFull, EngineError, Pressure, SampleRequest
from tasks.rollout.vllm_config import VllmConfig
from tasks.rollout.vllm_server import Endpoint, vllm_servers, wait_up

if TYPE_CHECKING:
    from models.policy import Base

_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class _Version:
    """A loaded policy version; `name` is its adapter's on every server, None for the base alone.

    vLLM's prefix cache is keyed by that name, and servers may outlive a run or serve two: so it carries the digest,
    and what tells this engine's adapters from others', whose folders may be gone (reading one again ends a server).
    """

    name: str | None
    adapter: Path | None
    digest: str

    def on(self, client: VllmClient) -> str:
        return self.name or client.base_name


@dataclass(slots=True)
class _Noise:
    """What a session draws from: its seed, and how many of its turns have drawn."""

    seed: int
    turns: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A request under way, or ended; `number` counts requests."""

    number: int
    request: SampleRequest
    client: VllmClient
    future: Future[Completion]


class VllmEngine:
    """Samples by vLLM servers that all hold one base model. Not for use by two threads at a time.

    Reproducible: the seed of every turn, hence its noise, and the order of what one poll returns. Not reproducible:
    which turns have ended by a poll (the clock decides), and the last bits of log-probabilities, which depend on what
    else is in a server's batch (about 1e-6 in float32), so that now and then another token is drawn.

    A lost server's turns fail, its sessions go to another server with their next request. Full-weight policies are
    not served: a version is the base, alone or with an adapter.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        expected: Expected,
        digest_of: Callable[[Path | None], str],
        *,
        vocabulary: int,
        turn_seconds: float = 600.0,
        probe_limit: float = 1e-3,
    ) -> None:
        self._expected, self._digest_of, self._limit = expected, digest_of, probe_limit
        self._vocabulary = vocabulary
        self._versions: dict[str, _Version] = {}
        self._mine = uuid.uuid4().hex[:8]
        self._noise: dict[str, _Noise] = {}
        self._running: dict[str, _Turn] = {}
        self._done: queue.SimpleQueue[_Turn] = queue.SimpleQueue()
        self._ended: list[tuple[_Turn, Completion]] = []
        self._failed: list[tuple[_Turn, EngineError]] = []
        self._submitted = 0
        self._fleet = Fleet(endpoints, turn_seconds)

    @classmethod
    def from_base(cls, base: Base, endpoints: Sequence[Endpoint], config: VllmConfig) -> VllmEngine:
        """The engine for a base model that the servers hold too, and its LoRA adapters."""
        from models.fingerprint import digest_folder

        return cls(
            endpoints,
            trainers_logprobs(base),
            lambda adapter: base.digest if adapter is None else digest_folder(adapter),
            vocabulary=base.model.config.get_text_config().vocab_size,
            turn_seconds=config.turn_seconds,
            probe_limit=config.probe_limit,
        )

    def load_adapter(self, version: str, path: Path | None) -> str:
        """Serve the adapter at `path` as `version` on every server, each proven; the same weights again is no work.

        Raises EngineError where a server refuses it or computes something else, ValueError for a name that stands for
        other weights.
        """
        digest = self._digest_of(path)
        if version in self._versions:
            if self._versions[version].digest != digest:
                raise ValueError(f"{version} is loaded with other weights: give new weights a new name")
            return digest
        name = None if path is None else f"{version}-{digest[:16]}-{self._mine}"
        found = _Version(name, path, digest)
        with ExitStack() as undo:
            undo.callback(self._unload, found)
            for client in self._fleet.living:
                self._load(client, version, found)
            self._fleet.require_living()
            undo.pop_all()
        self._versions[version] = found
        return digest

    def drop_adapter(self, version: str) -> None:
        """Free a version's adapter on every server. Raises EngineError while turns of it are under way."""
        found = self._version(version)
        if any(turn.request.policy_version == version for turn in self._running.values()):
            raise EngineError(f"{version} has turns under way: close their sessions before dropping it")
        self._unload(found)
        del self._versions[version]

    def submit(self, request: SampleRequest) -> None:
        """Ask for a turn at the session's server. Raises `ContextFull`, `EngineError`, ValueError for a bad request."""
        session, found = request.session, self._version(request.policy_version, request.session)
        if session in self._running:
            raise ValueError(f"session {session} has a turn under way")
        if not request.token_ids or request.max_tokens < 1:
            raise ValueError("a turn needs a token to start from and at least one to sample")
        most = min(request.max_tokens, self._room(request.token_ids, session))
        self._fleet.require_living(session)
        client = self._fleet.placement.place(session)
        noise = self._noise.setdefault(session, _Noise(request.seed))
        body = wire.sampling_body(found.on(client), request, most, wire.turn_seed(noise.seed, noise.turns))
        noise.turns += 1
        self._submitted += 1
        future = self._fleet.start(client, _sampled(client, body, request, found.digest))
        turn = self._running[session] = _Turn(self._submitted, request, client, future)
        future.add_done_callback(lambda _: self._done.put(turn))

    def poll(self) -> list[tuple[str, Completion]]:
        """The turns that have ended, by request; waits up to 0.05 s for the first.

        Raises EngineError with the sessions whose turns failed, those of one server together; what else has ended
        comes with a later poll.
        """
        self._collect()
        if self._failed:
            raise self._failure()
        ended, self._ended = sorted(self._ended, key=lambda one: one[0].number), []
        return [(turn.request.session, completion) for turn, completion in ended]

    def close_session(self, session: str) -> None:
        """Forget a session; its turn under way is taken back from the server."""
        turn = self._running.pop(session, None)
        if turn is not None:
            turn.future.cancel()
        self._ended = [one for one in self._ended if one[0].request.session != session]
        self._failed = [one for one in self._failed if one[0].request.session != session]
        self._fleet.placement.forget(session)
        self._noise.pop(session, None)

    def teacher_force(self, version: str, token_ids: Sequence[int]) -> list[float]:
        """By one server's forward over the whole sequence, no prefix of which is taken from its cache.

        Raises ContextFull for a sequence as long as the context: vLLM samples a token after it.
        """
        found = self._version(version)
        if len(token_ids) < 2:
            return []
        self._room(token_ids)
        for client in self._fleet.living:
            answer = self._fleet.ask(client, client.complete(wire.scoring_body(found.on(client), token_ids)))
            if answer is not None:
                return answer.prompt_logprobs
        self._fleet.require_living()
        raise AssertionError("a server lives that was not asked")

    def pressure(self) -> Pressure | None:
        """The servers' KV-caches, about once a second."""
        return self._fleet.pressure()

    def close(self) -> None:
        """Give up what is under way, take the adapters off the servers, which live on. May be called twice."""
        for turn in self._running.values():
            turn.future.cancel()
        self._running.clear()
        while self._versions:
            self._unload(self._versions.popitem()[1])
        self._fleet.close()

    def _load(self, client: VllmClient, version: str, found: _Version) -> None:
        """Load a version on one server and prove it; a server that is lost meanwhile is left out."""
        if found.name and found.adapter:
            self._fleet.ask(client, client.load(found.name, found.adapter))
        request = probe_request(version, self._vocabulary)
        answers = [self._probed(client, name, request) for name in (found.on(client), client.base_name)]
        if answers[0] is not None and answers[1] is not None:
            prove(version, found.adapter, answers[0], answers[1], request, self._expected, self._limit)

    def _probed(self, client: VllmClient, name: str, request: SampleRequest) -> wire.Answer | None:
        if client not in self._fleet.living:
            return None
        body = wire.sampling_body(name, request, request.max_tokens, request.seed)
        return self._fleet.ask(client, client.complete(body | {"prompt_logprobs": 0}))

    def _unload(self, found: _Version) -> None:
        if found.name is not None:
            for client in self._fleet.living:
                with suppress(EngineError):  # not there, or there and never asked for again
                    self._fleet.ask(client, client.unload(found.name))

    def _collect(self) -> None:
        """Take in what has ended; wait a little for the first, when there is nothing to tell yet."""
        wait = bool(self._running) and not self._ended and not self._failed
        while True:
            try:
                turn = self._done.get(timeout=_POLL_SECONDS) if wait else self._done.get_nowait()
            except queue.Empty:
                return
            if self._running.get(turn.request.session) is turn:  # not one of a session that was closed
                wait = False
                del self._running[turn.request.session]
                self._take(turn)

    def _take(self, turn: _Turn) -> None:
        try:
            self._ended.append((turn, turn.future.result()))
        except ServerLost as error:
            self._fleet.lose(turn.client, error)
            self._failed.append((turn, error))
        except EngineError as error:
            self._failed.append((turn, error))

    def _failure(self) -> EngineError:
        """One error for the failed turns of one server."""
        client = self._failed[0][0].client
        mine = [one for one in self._failed if one[0].client is client]
        self._failed = [one for one in self._failed if one[0].client is not client]
        sessions = tuple(turn.request.session for turn, _ in sorted(mine, key=lambda one: one[0].number))
        return EngineError(str(mine[0][1]), sessions)

    def _room(self, token_ids: Sequence[int], *sessions: str) -> int:
        """How many tokens fit behind these; at least one, or ContextFull."""
        room = self._fleet.context - len(token_ids)
        if room < 1:
            raise ContextFull(f"{len(token_ids)} tokens fill the servers' context of {self._fleet.context}", sessions)
        return room

    def _version(self, version: str, *sessions: str) -> _Version:
        if version not in self._versions:
            raise EngineError(f"policy version {version} is not loaded: call load_adapter first", sessions)
        return self._versions[version]


@contextmanager
def open_vllm(base: Base, config: VllmConfig, logs: Path) -> Iterator[VllmEngine]:
    """The engine over a recipe's servers; those it started are gone when it is closed."""
    with ExitStack() as stack:
        endpoints = [Endpoint(url) for url in config.endpoints]
        if not endpoints:
            services = stack.enter_context(vllm_servers(config, base.path, logs))
            endpoints = wait_up(services, config.start_seconds)
        yield stack.enter_context(closing(VllmEngine.from_base(base, endpoints, config)))


def trainers_logprobs(base: Base) -> Expected:
    """Log-probabilities by transformers and peft, the adapter beside the base's own weights: no copy of the base."""
    from models.fingerprint import probe_logprobs
    from models.policy import trainable_policy

    @lru_cache(maxsize=1)
    def adapted(adapter: Path) -> Any:
        return trainable_policy(base, adapter).eval()

    def expected(adapter: Path | None, token_ids: Sequence[int], temperatures: Sequence[float]) -> list[float]:
        return probe_logprobs(base.model if adapter is None else adapted(adapter), token_ids, temperatures)

    return expected


async def _sampled(client: VllmClient, body: dict[str, Any], request: SampleRequest, digest: str) -> Completion:
    started = time.perf_counter()
    answer = await client.complete(body)
    return Completion(
        token_ids=answer.token_ids,
        logprobs=answer.logprobs,
        finish_reason=answer.finish_reason,
        policy_version=request.policy_version,
        policy_digest=digest,
        prompt_tokens=len(request.token_ids),
        cached_tokens=answer.cached_tokens,
        seconds=time.perf_counter() - started,
    )
