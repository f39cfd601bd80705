"""Keeps sessions in flight: tools run in threads, and never change what comes out.

jobs -> Agent in the engine -> calls in a thread pool -> back into the engine -> Rollouts, in the jobs' order

Time here is counted in polls of the engine. What tools returned joins the engine at every `tool_latency_polls`-th poll:
not sooner if they were quicker, and the engine waits if they were slower. So the batches that the engine computes,
hence every bit of the result, depend on the jobs alone, and turns that join together are one prefill. When nothing is
being sampled, all pending tools are waited for and join at once, in the jobs' order. With slow tools that waiting costs
more than the model: `tool_latency_polls = 0` lets each result join when it is there, and the clock decides the batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from data_contracts.records import Problem, Rollout, Sampling, Status
from tasks.rollout.agent import Agent, ChatLike, Job
from tasks.rollout.calls import Answered, Asked, answer, batches
from tasks.rollout.config import RolloutConfig
from tasks.rollout.engine import Completion, ContextFull, Engine, EngineError
from tasks.rollout.environments.base import Session
from tasks.rollout.in_flight import InFlight
from tasks.rollout.journal import Journal
from tasks.rollout.sandbox import SandboxError

DEFAULTS = RolloutConfig()
OpenSession = Callable[[Problem], Session]
StartAgent = Callable[[Job, str, str], Agent]
"""(job, the session's name, policy version) -> its agent."""


class Ended(NamedTuple):
    """A job and what became of it."""

    job: Job
    rollout: Rollout


@dataclass(frozen=True, slots=True)
class _Pending:
    """Tool calls of a sampled turn, under way: the turn at `place` of a batch."""

    flight: _Flight
    due: int
    future: Future[list[list[Answered]]]
    place: int


@dataclass(slots=True, eq=False)
class _Flight:
    """A job in the air: its place among all jobs, which attempt, and its agent."""

    place: int
    job: Job
    attempt: int
    agent: Agent


def run_sessions(
    jobs: Sequence[Job],
    engine: Engine,
    chat: ChatLike,
    *,
    open_session: OpenSession,
    policy_version: str,
    sampling: Sampling,
    config: RolloutConfig = DEFAULTS,
    journal: Journal | None = None,
    on_done: Callable[[Rollout], None] | None = None,
) -> list[Rollout]:
    """Make one rollout per job; returns them in the order of the jobs.

    Rollouts that the journal holds are taken from it, new ones are added. An infrastructure failure is tried again
    `config.retries` times from the start, then recorded with its status. `on_done` hears of every rollout, also of the
    journal's. `sampling.seed` is replaced by each job's.
    """
    done = finished(jobs, journal, {policy_version})
    for rollout in done.values():
        if on_done:
            on_done(rollout)
    start = agents(chat, open_session, sampling, config)
    with Scheduler(engine, start, config) as scheduler:
        scheduler.serve(policy_version)
        scheduler.add(job for job in jobs if job.trajectory_id not in done)
        while not scheduler.idle:
            ended = {job.trajectory_id: rollout for job, rollout in scheduler.tick()}
            if journal is not None and ended:
                journal.add(*ended.values())
            done |= ended
            for rollout in ended.values():
                if on_done:
                    on_done(rollout)
    return [done[job.trajectory_id] for job in jobs]


def agents(chat: ChatLike, open_session: OpenSession, sampling: Sampling, config: RolloutConfig) -> StartAgent:
    """How an attempt at a job begins; `sampling.seed` is replaced by the job's."""

    def start(job: Job, name: str, version: str) -> Agent:
        return Agent(
            job,
            open_session(job.problem),
            chat,
            name=name,
            policy_version=version,
            sampling=sampling.model_copy(update={"seed": job.seed}),
            config=config,
        )

    return start


def finished(jobs: Sequence[Job], journal: Journal | None, versions: set[str]) -> dict[str, Rollout]:
    """The jobs' rollouts that the journal holds, by trajectory id; each has to be of one of `versions`."""
    if len({job.trajectory_id for job in jobs}) < len(jobs):
        raise ValueError("two jobs have one trajectory id: number the rollouts of a problem")
    found: dict[str, Rollout] = {}
    for job in jobs:
        rollout = journal.finished(job.trajectory_id) if journal is not None else None
        if journal is None or rollout is None:
            continue
        if (version := rollout.trajectory.policy_version) not in versions:
            message = f"{journal.path} holds rollouts of {version}, not of {', '.join(sorted(versions))}"
            raise ValueError(f"{message}: give each policy version its own journal")
        found[job.trajectory_id] = rollout
    return found


class Scheduler:
    """Sessions between two polls. Leaving it closes every session that is still in the engine.

    `serve` may be called again while sessions are in flight: a turn under way ends under the version it began with,
    the turns after it are the new version's.
    """

    def __init__(self, engine: Engine, start: StartAgent, config: RolloutConfig) -> None:
        self._engine, self._start, self._config = engine, start, config
        self._version = ""
        self._waiting: deque[tuple[int, Job, int]] = deque()
        self._tools = ThreadPoolExecutor(max_workers=config.tool_workers, thread_name_prefix="tools")
        self._flights: dict[str, _Flight] = {}
        self._sampling: set[str] = set()
        self._asking: list[tuple[_Flight, Asked]] = []
        self._pending: list[_Pending] = []
        self._ended: list[Ended] = []
        self._polls = self._places = 0
        self._in_flight = InFlight(config.capacity)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tools.shutdown(wait=True, cancel_futures=True)
        for name in self._flights:
            self._engine.close_session(name)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._flights

    @property
    def running(self) -> int:
        """Sessions in flight."""
        return len(self._flights)

    def serve(self, version: str) -> None:
        """Sample new turns under this policy version, which the engine has loaded."""
        self._version = version

    def add(self, jobs: Iterable[Job]) -> None:
        """Put jobs behind those that wait."""
        for job in jobs:
            self._waiting.append((self._places, job, 0))
            self._places += 1

    def sampling_under(self, version: str) -> bool:
        """Whether a turn of this version is under way: then its weights are still needed."""
        return any(self._flights[name].agent.policy_version == version for name in self._sampling)

    def tick(self) -> list[Ended]:
        """One poll of the engine and all that follows from it; returns what ended."""
        self._admit()
        self._join()
        if self._sampling:
            self._poll()
        self._polls += 1
        ended, self._ended = self._ended, []
        return ended

    def _admit(self) -> None:
        self._in_flight.hear(self._engine.pressure(), len(self._flights))
        while self._waiting and len(self._flights) < self._in_flight.limit:
            place, job, attempt = self._waiting.popleft()
            agent = self._start(job, f"{job.trajectory_id}#{attempt}", self._version)
            flight = self._flights[agent.name] = _Flight(place, job, attempt, agent)
            self._sample(flight)

    def _join(self) -> None:
        """Bring back the turns whose tools are due."""
        due = self._due()
        for pending in sorted(due, key=lambda pending: pending.flight.place):
            flight = pending.flight
            try:
                answers = pending.future.result()[pending.place]
            except SandboxError as error:
                self._fail(flight, "sandbox_error", str(error))
            except OSError as error:
                self._fail(flight, "tool_error", f"{type(error).__name__}: {error}")
            else:
                flight.agent.take_results(answers)
                self._go_on(flight)

    def _due(self) -> list[_Pending]:
        """Take out what is due by the count of polls, or all when nothing else is sampled; or what is there."""
        by_clock = self._config.joins_when_ready
        if by_clock and not self._sampling:
            wait([pending.future for pending in self._pending], return_when=FIRST_COMPLETED)
        due: list[_Pending] = []
        later: list[_Pending] = []
        for pending in self._pending:
            ready = pending.future.done() if by_clock else not self._sampling or pending.due <= self._polls
            (due if ready else later).append(pending)
        self._pending = later
        return due

    def _poll(self) -> None:
        try:
            completions = self._engine.poll()
        except EngineError as error:
            named = set(error.sessions) & self._sampling if error.sessions else self._sampling
            for flight in sorted((self._flights[name] for name in named), key=lambda flight: flight.place):
                self._fail(flight, "engine_error", str(error))
            return
        for name, completion in completions:
            self._sampling.discard(name)
            self._take(self._flights[name], completion)
        self._call_tools()

    def _take(self, flight: _Flight, completion: Completion) -> None:
        agent = flight.agent
        calls = agent.take_completion(completion)
        if calls:
            self._asking.append((flight, Asked(agent.session, calls, agent.batched)))
            return
        if agent.status is None:
            agent.take_results()
        self._go_on(flight)

    def _call_tools(self) -> None:
        """Start the calls of the turns that ended with this poll."""
        latency = self._config.tool_latency_polls
        due = self._polls + latency - self._polls % latency if latency else self._polls
        for batch in batches(self._asking, lambda asking: asking[1]):
            future = self._tools.submit(answer, [asked for _, asked in batch])
            self._pending += [_Pending(flight, due, future, place) for place, (flight, _) in enumerate(batch)]
        self._asking = []

    def _go_on(self, flight: _Flight) -> None:
        if flight.agent.status is None:
            self._move(flight)
            self._sample(flight)
        else:
            self._end(flight)

    def _move(self, flight: _Flight) -> None:
        """Go on under the version that is served now, in a session of its own: what the old one cached is void."""
        agent = flight.agent
        if agent.policy_version != self._version:
            self._engine.close_session(agent.name)
            del self._flights[agent.name]
            agent.move_to(self._version)
            self._flights[agent.name] = flight

    def _sample(self, flight: _Flight) -> None:
        try:
            self._engine.submit(flight.agent.request())
        except ContextFull as error:
            flight.agent.end("out_of_tokens", str(error))
            self._end(flight)
        except EngineError as error:
            self._fail(flight, "engine_error", str(error))
        else:
            self._sampling.add(flight.agent.name)

    def _fail(self, flight: _Flight, status: Status, detail: str) -> None:
        """An infrastructure failure: from the start again, before new jobs; or the end, when tries have run out."""
        flight.agent.end(status, detail)
        if flight.attempt < self._config.retries:
            self._leave(flight)
            self._waiting.appendleft((flight.place, flight.job, flight.attempt + 1))
        else:
            self._end(flight)

    def _end(self, flight: _Flight) -> None:
        self._leave(flight)
        self._ended.append(Ended(flight.job, flight.agent.finish()))

    def _leave(self, flight: _Flight) -> None:
        name = flight.agent.name
        self._sampling.discard(name)
        self._engine.close_session(name)
        del self._flights[name]
