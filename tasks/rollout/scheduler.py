"""Keeps sessions in flight: tools run in threads, and never change what comes out.

jobs -> Agent in the engine -> calls in a thread pool -> back into the engine -> Rollouts, in the jobs' order

Time here is counted in polls of the engine. What tools returned joins the engine at every `tool_latency_polls`-th poll:
not sooner if they were quicker, and the engine waits if they were slower. So the batches that the engine computes,
hence every bit of the result, depend on the jobs alone, and turns that join together are one prefill. When nothing is
being sampled, all pending tools are waited for and join at once, in the jobs' order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from data_contracts.records import Problem, Rollout, Sampling, Status
from tasks.rollout.agent import Agent, ChatLike, Job, run_calls
from tasks.rollout.context.config import ContextConfig
from tasks.rollout.engine import Completion, ContextFull, Engine, EngineError
from tasks.rollout.environments.base import Session, ToolResult
from tasks.rollout.journal import Journal
from tasks.rollout.sandbox import SandboxError

OpenSession = Callable[[Problem], Session]


@dataclass(frozen=True, slots=True)
class _Pending:
    """Tool calls of a sampled turn, under way."""

    flight: _Flight
    due: int
    future: Future[tuple[list[ToolResult], float]]


@dataclass(slots=True, eq=False)
class _Flight:
    """A job in the air: which of the jobs, which attempt, and its agent."""

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
    capacity: int = 128,
    journal: Journal | None = None,
    max_turn_tokens: int = 64,
    context: ContextConfig = ContextConfig(),  # noqa: B008  (frozen)
    tool_format: str = "hermes",
    tool_workers: int = 2,
    tool_latency_polls: int = 4,
    retries: int = 2,
    on_done: Callable[[Rollout], None] | None = None,
) -> list[Rollout]:
    """Make one rollout per job, at most `capacity` at a time; returns them in the order of the jobs.

    Rollouts that the journal holds are taken from it, new ones are added. An infrastructure failure is tried again
    `retries` times from the start, then recorded with its status. `on_done` hears of every rollout, the journal's too.
    `sampling.seed` is replaced by each job's.
    """
    if len({job.trajectory_id for job in jobs}) < len(jobs):
        raise ValueError("two jobs have one trajectory id: number the rollouts of a problem")
    if capacity < 1 or tool_latency_polls < 1:
        raise ValueError("capacity and tool_latency_polls are at least 1")

    def start(job: Job, attempt: int) -> Agent:
        return Agent(
            job,
            open_session(job.problem),
            chat,
            name=f"{job.trajectory_id}#{attempt}",
            policy_version=policy_version,
            sampling=sampling.model_copy(update={"seed": job.seed}),
            max_turn_tokens=max_turn_tokens,
            context=context,
            tool_format=tool_format,
        )

    done = _from_journal(jobs, journal, policy_version)
    for rollout in done.values():
        if on_done:
            on_done(rollout)
    waiting = deque((place, job, 0) for place, job in enumerate(jobs) if place not in done)
    with _Scheduler(engine, start, waiting, capacity, tool_workers, tool_latency_polls, retries) as scheduler:
        while not scheduler.idle:
            ended = dict(scheduler.tick())
            if journal is not None and ended:
                journal.add(*ended.values())
            done |= ended
            for rollout in ended.values():
                if on_done:
                    on_done(rollout)
    return [done[place] for place in range(len(jobs))]


def _from_journal(jobs: Sequence[Job], journal: Journal | None, policy_version: str) -> dict[int, Rollout]:
    found: dict[int, Rollout] = {}
    for place, job in enumerate(jobs):
        rollout = journal.finished(job.trajectory_id) if journal is not None else None
        if journal is None or rollout is None:
            continue
        if rollout.trajectory.policy_version != policy_version:
            message = f"{journal.path} holds rollouts of {rollout.trajectory.policy_version}, not of {policy_version}"
            raise ValueError(f"{message}: give each policy version its own journal")
        found[place] = rollout
    return found


class _Scheduler:
    """The state between two polls. Leaving it closes every session that is still in the engine."""

    def __init__(
        self,
        engine: Engine,
        start: Callable[[Job, int], Agent],
        waiting: deque[tuple[int, Job, int]],
        capacity: int,
        workers: int,
        latency: int,
        retries: int,
    ) -> None:
        self._engine, self._start, self._waiting = engine, start, waiting
        self._capacity, self._latency, self._retries = capacity, latency, retries
        self._tools = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="tools")
        self._flights: dict[str, _Flight] = {}
        self._sampling: set[str] = set()
        self._pending: list[_Pending] = []
        self._ended: list[tuple[int, Rollout]] = []
        self._polls = 0

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

    def tick(self) -> list[tuple[int, Rollout]]:
        """One poll of the engine and all that follows from it; returns (place, rollout) of what ended."""
        self._admit()
        self._join()
        if self._sampling:
            self._poll()
        self._polls += 1
        ended, self._ended = self._ended, []
        return ended

    def _admit(self) -> None:
        while self._waiting and len(self._flights) < self._capacity:
            place, job, attempt = self._waiting.popleft()
            agent = self._start(job, attempt)
            flight = self._flights[agent.name] = _Flight(place, job, attempt, agent)
            self._sample(flight)

    def _join(self) -> None:
        """Bring back the turns whose tools are due; all of them, when there is nothing else to sample."""
        everyone = not self._sampling
        due = [pending for pending in self._pending if everyone or pending.due <= self._polls]
        self._pending = [pending for pending in self._pending if pending not in due]
        for pending in sorted(due, key=lambda pending: pending.flight.place):
            flight = pending.flight
            try:
                results, seconds = pending.future.result()
            except SandboxError as error:
                self._fail(flight, "sandbox_error", str(error))
            except (OSError, TimeoutError) as error:
                self._fail(flight, "tool_error", f"{type(error).__name__}: {error}")
            else:
                flight.agent.take_results(results, seconds)
                self._go_on(flight)

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

    def _take(self, flight: _Flight, completion: Completion) -> None:
        agent = flight.agent
        calls = agent.take_completion(completion)
        if calls:
            future = self._tools.submit(run_calls, agent.session, calls)
            due = self._polls + self._latency - self._polls % self._latency
            self._pending.append(_Pending(flight, due, future))
            return
        if agent.status is None:
            agent.take_results([])
        self._go_on(flight)

    def _go_on(self, flight: _Flight) -> None:
        if flight.agent.status is None:
            self._sample(flight)
        else:
            self._end(flight)

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
        if flight.attempt < self._retries:
            self._leave(flight)
            self._waiting.appendleft((flight.place, flight.job, flight.attempt + 1))
        else:
            self._end(flight)

    def _end(self, flight: _Flight) -> None:
        self._leave(flight)
        self._ended.append((flight.place, flight.agent.finish()))

    def _leave(self, flight: _Flight) -> None:
        name = flight.agent.name
        self._sampling.discard(name)
        self._engine.close_session(name)
        del self._flights[name]
