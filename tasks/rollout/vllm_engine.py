"""The engine over vLLM servers: HTTP, a LoRA adapter for each policy version, proven before it serves.

load_adapter -> every server, each proven;  submit -> the session's server;  poll -> the turns that have ended

A version of full weights takes the place of what all servers hold, by a reload that is proven or by a restart.
"""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from models.policy import is_whole
from tasks.rollout import _vllm_wire as wire
from tasks.rollout._vllm_client import VllmClient
from tasks.rollout._vllm_fleet import Fleet, ServerLost
from tasks.rollout._vllm_proof import Expected, probe_request, prove
from tasks.rollout._vllm_weights import Holding, Restart
from tasks.rollout.engine import Completion, ContextFull, EngineError, Pressure, SampleRequest
from tasks.rollout.vllm_config import VllmConfig
from tasks.rollout.vllm_server import Endpoint, Servers

if TYPE_CHECKING:
    from models.policy import Base

_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class _Version:
    """A loaded policy version; `name` is its adapter's on every server, None for what the servers hold without one.

    vLLM's prefix cache is keyed by that name, and servers may outlive a run or serve two: so it carries the digest,
    and what tells this engine's adapters from others', whose folders may be gone (reading one again ends a server).
    """

    name: str | None
    path: Path | None
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

    A lost server's turns fail, its sessions go to another server with their next request.

    A version is the base, alone or with an adapter, or a whole model of the base's kind. The servers hold one model at
    a time: with a version of another one, those before it are gone. `restart` starts the servers over others' weights.
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
        restart: Restart | None = None,
        reload: bool = False,
    ) -> None:
        self._expected, self._digest_of, self._limit = expected, digest_of, probe_limit
        self._vocabulary = vocabulary
        self._versions: dict[str, _Version] = {}
        self._gone: set[str] = set()
        self._holding = Holding(restart, reload=reload)
        self._mine = uuid.uuid4().hex[:8]
        self._noise: dict[str, _Noise] = {}
        self._running: dict[str, _Turn] = {}
        self._done: queue.SimpleQueue[_Turn] = queue.SimpleQueue()
        self._ended: list[tuple[_Turn, Completion]] = []
        self._failed: list[tuple[_Turn, EngineError]] = []
        self._submitted = 0
        self._fleet = Fleet(endpoints, turn_seconds)

    @classmethod
    def from_base(
        cls, base: Base, endpoints: Sequence[Endpoint], config: VllmConfig, restart: Restart | None = None
    ) -> Self:
        """The engine for a base model that the servers hold too, its LoRA adapters, and models trained from it."""
        from models.fingerprint import digest_folder

        return cls(
            endpoints,
            trainers_logprobs(base),
            lambda adapter: base.digest if adapter is None else digest_folder(adapter),
            vocabulary=base.model.config.get_text_config().vocab_size,
            turn_seconds=config.turn_seconds,
            probe_limit=config.probe_limit,
            restart=restart,
            reload=config.reload,
        )

    def load_adapter(self, version: str, path: Path | None) -> str:
        """Serve the adapter or the full weights at `path` as `version` on every server, each proven.

        The same weights again is no work. Full weights wait for the turns under way, which end under their versions.
        Raises EngineError where a server refuses it or computes something else, ValueError for a name that stands for
        other weights, UserError for full weights on servers that are not ours to restart.
        """
        digest = self._digest_of(path)
        if version in self._versions:
            if self._versions[version].digest != digest:
                raise ValueError(f"{version} is loaded with other weights: give new weights a new name")
            return digest
        weights = path if path is not None and is_whole(path) else None
        if weights != self._holding.weights:
            self._hold(version, weights)
        name = None if path == weights else f"{version}-{digest[:16]}-{self._mine}"
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
        if version in self._gone:
            self._gone.remove(version)
            return
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
        if found.name and found.path:
            self._fleet.ask(client, client.load(found.name, found.path))
        answer = self._probed(client, found.on(client))
        base = self._probed(client, client.base_name) if found.name else None
        self._prove(version, found.path, answer, before=(None, base) if base else None)

    def _hold(self, version: str, weights: Path | None) -> None:
        """Full weights (None: the base's) in the place of what the servers hold, which is gone with its versions."""
        self._holding.require_ours()
        wait([turn.future for turn in self._running.values()])
        self._gone |= self._versions.keys()
        self._versions.clear()

        def reload(client: VllmClient, weights: Path) -> None:
            before = self._probed(client, client.base_name)
            self._fleet.ask(client, client.reload(weights))
            answer = self._probed(client, client.base_name)
            self._prove(version, weights, answer, before=(self._holding.weights, before) if before else None)

        self._fleet = self._holding.change(weights, self._fleet, reload)

    def _probed(self, client: VllmClient, name: str) -> wire.Answer | None:
        if client not in self._fleet.living:
            return None
        request = probe_request(self._vocabulary)
        body = wire.sampling_body(name, request, request.max_tokens, request.seed)
        return self._fleet.ask(client, client.complete(body | {"prompt_logprobs": 0}))

    def _prove(
        self,
        version: str,
        weights: Path | None,
        answer: wire.Answer | None,
        before: tuple[Path | None, wire.Answer] | None,
    ) -> None:
        if answer is not None:
            request = probe_request(self._vocabulary)
            prove(version, weights, answer, request, self._expected, self._limit, before=before)

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
        if config.endpoints:
            engine = VllmEngine.from_base(base, [Endpoint(url) for url in config.endpoints], config)
        else:
            servers = stack.enter_context(closing(Servers(config, base.path, logs)))
            engine = VllmEngine.from_base(base, servers.start(), config, servers.start)
        yield stack.enter_context(closing(engine))


def trainers_logprobs(base: Base) -> Expected:
    """Log-probabilities by transformers; an adapter lies beside the base's own weights, so that they exist once."""
    from models.fingerprint import probe_logprobs
    from models.policy import load_base, trainable_policy

    @lru_cache(maxsize=1)
    def other(path: Path) -> Any:
        return load_base(path).model if is_whole(path) else trainable_policy(base, path).eval()

    def expected(path: Path | None, token_ids: Sequence[int], temperatures: Sequence[float]) -> list[float]:
        return probe_logprobs(base.model if path is None else other(path), token_ids, temperatures)

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
