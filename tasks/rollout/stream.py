"""Training rollouts across iterations: what one iteration leaves unfinished goes on under the next policy version.

collect(number, its jobs, jobs ahead) -> its rollouts;  going_on(): sessions ahead go on while others work

Jobs ahead fill the places that the last sessions of an iteration leave free. Those of iteration i may begin when
version i - max_staleness serves, so at version v no more than (max_staleness + v + 1) * batch rollouts have begun, and
no turn is trained on that is more than max_staleness versions old. With 0 there are none, and nothing is ever carried
over. A rollout belongs to the iteration that chose its problem, however early or late it ends: the batch is not made of
the quickest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from data_contracts.records import Rollout, policy_name
from tasks.rollout.agent import Job
from tasks.rollout.journal import Journal
from tasks.rollout.scheduler import Scheduler, finished


class Stream:
    """One scheduler for all iterations; finished rollouts go to the journal of their iteration as they end."""

    def __init__(self, scheduler: Scheduler, journal_at: Callable[[int], Path], max_staleness: int) -> None:
        self._scheduler, self._journal_at, self._max_staleness = scheduler, journal_at, max_staleness
        self._journals: dict[int, Journal] = {}
        self._known: set[str] = set()
        self._done: dict[str, Rollout] = {}
        self._turn, self._free = threading.RLock(), threading.Event()
        self._free.set()

    def sampling_under(self, version: str) -> bool:
        """Whether a turn of this version is under way."""
        return self._scheduler.sampling_under(version)

    @property
    def running(self) -> int:
        """Sessions in flight, those ahead included."""
        return self._scheduler.running

    def collect(
        self,
        number: int,
        jobs: Sequence[Job],
        ahead: Sequence[Job] = (),
        on_done: Callable[[Rollout], None] = lambda rollout: None,
    ) -> list[Rollout]:
        """One rollout per job of iteration `number`, in their order, the turns from now on under its version.

        `on_done` hears of each of them, also of those that were done before.
        """
        with self.alone():
            return self._collect(number, jobs, ahead, on_done)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """What goes on in a thread waits meanwhile: engine and chat are the caller's."""
        self._free.clear()
        try:
            with self._turn:
                yield
        finally:
            self._free.set()

    def _collect(
        self, number: int, jobs: Sequence[Job], ahead: Sequence[Job], on_done: Callable[[Rollout], None]
    ) -> list[Rollout]:
        self._scheduler.serve(policy_name(number))
        self._take_up([*jobs, *ahead])
        wanted = [job.trajectory_id for job in jobs]
        told: set[str] = set()
        while len(told) < len(wanted):
            for name in (name for name in wanted if name in self._done and name not in told):
                told.add(name)
                on_done(self._done[name])
            if len(told) < len(wanted):
                self._tick()
        self._journals.pop(number, None)
        self._known -= set(wanted)
        return [self._done.pop(name) for name in wanted]

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Let what is in flight go on in a thread while the caller works; an error there is raised at the end."""
        if self._scheduler.idle:
            yield
            return
        stop = threading.Event()
        with ThreadPoolExecutor(1, thread_name_prefix="rollouts ahead") as thread:
            going = thread.submit(self._go_on, stop)
            try:
                yield
            finally:
                stop.set()
        going.result()

    def _go_on(self, stop: threading.Event) -> None:
        while not stop.is_set() and not self._scheduler.idle:
            with self._turn:
                self._tick()
            self._free.wait()  # a lock alone may be taken again at once, whoever else waits for it

    def _take_up(self, jobs: Sequence[Job]) -> None:
        """Begin the jobs that are neither under way nor done; an earlier process may have done some."""
        new = [job for job in jobs if job.trajectory_id not in self._known]
        self._known |= {job.trajectory_id for job in new}
        for number in sorted({job.iteration for job in new}):
            of_iteration = [job for job in new if job.iteration == number]
            versions = {policy_name(n) for n in range(max(0, number - self._max_staleness), number + 1)}
            done = finished(of_iteration, self._journal(number), versions)
            self._done |= done
            self._scheduler.add(job for job in of_iteration if job.trajectory_id not in done)

    def _tick(self) -> None:
        ended = self._scheduler.tick()
        for number in sorted({one.job.iteration for one in ended}):
            self._journal(number).add(*(one.rollout for one in ended if one.job.iteration == number))
        self._done |= {one.job.trajectory_id: one.rollout for one in ended}

    def _journal(self, number: int) -> Journal:
        if number not in self._journals:
            self._journals[number] = Journal(self._journal_at(number))
        return self._journals[number]
