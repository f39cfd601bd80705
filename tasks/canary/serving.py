"""Many threads, one engine: a pump owns the engine and answers each request by a future.

sample(request) -> inbox -> [pump thread: submit, poll, submit, poll ...] -> Future[Completion]

The engine's calls block and are made by one thread only, so that requests of many HTTP sessions share decode steps.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Self, TypeVar

from data_contracts.errors import UserError
from tasks.rollout.engine import Completion, Engine, EngineError, SampleRequest, Streaming

Heard = Callable[[Sequence[int]], None]
T = TypeVar("T")


class EnginePump:
    """Holds an engine for as long as it is open; nobody else may call the engine meanwhile."""

    def __init__(self, engine: Engine, slots: int | None = None) -> None:
        """`slots`: sessions that the engine can hold; before one more, the longest idle is closed there."""
        self._engine = engine
        self._slots = slots
        self._held: OrderedDict[str, None] = OrderedDict()
        self._heard: dict[str, tuple[Heard, int]] = {}
        self._inbox: list[Callable[[], None]] = []
        self._waiting: dict[str, Future[Completion]] = {}
        self._wake = threading.Condition()
        self._stopped: str | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine-pump", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        return self._stopped is None and not self._closing

    @property
    def streams(self) -> bool:
        """Whether the engine shows a turn's tokens while it is sampled."""
        return isinstance(self._engine, Streaming)

    def sample(self, request: SampleRequest, hear: Heard | None = None) -> Future[Completion]:
        """Ask for one turn. The future fails with EngineError when the engine, or the pump, does.

        `hear` is given the turn's tokens so far, whenever there are more, by an engine that shows them.
        """
        future: Future[Completion] = Future()
        self._post(lambda: self._submit(request, future, hear))
        return future

    def call(self, function: Callable[[Engine], T]) -> Future[T]:
        """Run `function(engine)` between two steps, as for loading an adapter."""
        future: Future[T] = Future()
        self._post(lambda: _fulfil(future, lambda: function(self._engine)))
        return future

    def close_session(self, session: str) -> None:
        """Forget a session; a request of its that is under way fails with EngineError."""
        self._post(lambda: self._close_session(session))

    def close(self) -> None:
        """Do what was posted, then stop; requests that have no answer yet fail with EngineError."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _post(self, job: Callable[[], None]) -> None:
        with self._wake:
            if not self.alive:
                raise EngineError(self._stopped or "the engine's pump is closed")
            self._inbox.append(job)
            self._wake.notify()

    def _run(self) -> None:
        try:
            while self._take():
                self._step()
        finally:
            self._stop(sys.exc_info()[1])

    def _take(self) -> bool:
        """Wait for something to do and do what was posted; False when closing."""
        with self._wake:
            self._wake.wait_for(lambda: self._inbox or self._waiting or self._closing)
            jobs, self._inbox = self._inbox, []
        for job in jobs:
            job()
        return not self._closing

    def _step(self) -> None:
        if not self._waiting:
            return
        try:
            ended = self._engine.poll()
        except EngineError as error:
            for session in error.sessions or tuple(self._waiting):
                self._end(session, error)
            return
        for session, completion in ended:
            self._end(session, completion)
        if ended:
            self._make_room()
        if self._heard and isinstance(self._engine, Streaming):
            self._tell(self._engine)

    def _end(self, session: str, what: Completion | EngineError) -> None:
        self._heard.pop(session, None)
        if (future := self._waiting.pop(session, None)) is None:
            return
        if isinstance(what, EngineError):
            future.set_exception(what)
        else:
            future.set_result(what)

    def _tell(self, engine: Streaming) -> None:
        """Give those who listen the tokens that came with this step."""
        for session, (hear, told) in list(self._heard.items()):
            if len(so_far := engine.so_far(session)) > told:
                self._heard[session] = hear, len(so_far)
                hear(so_far)

    def _make_room(self) -> None:
        """Close idle sessions in the engine while it holds more than it has slots: a turn may be waiting for one."""
        while self._slots is not None and len(self._held) > self._slots:
            idle = next((session for session in self._held if session not in self._waiting), None)
            if idle is None:
                return
            del self._held[idle]
            self._engine.close_session(idle)

    def _submit(self, request: SampleRequest, future: Future[Completion], hear: Heard | None) -> None:
        if not future.set_running_or_notify_cancel():
            return
        if request.session in self._waiting:
            future.set_exception(EngineError("the session has a turn under way", (request.session,)))
            return
        self._waiting[request.session] = future
        if hear is not None:
            self._heard[request.session] = hear, 0
        try:
            self._held[request.session] = None
            self._held.move_to_end(request.session)
            self._make_room()
            self._engine.submit(request)
        except EngineError as error:
            self._end(request.session, error)

    def _close_session(self, session: str) -> None:
        self._held.pop(session, None)
        with suppress(EngineError):  # a stopped pump has nothing left to close
            self._engine.close_session(session)
        self._end(session, EngineError("the session was closed", (session,)))

    def _stop(self, cause: BaseException | None) -> None:
        """Leave nobody waiting, whatever ended the thread."""
        reason = "the engine's pump is closed" if cause is None else f"the engine failed: {cause!r}"
        with self._wake:
            self._stopped = reason
            jobs, self._inbox = self._inbox, []
        for future in self._waiting.values():
            future.set_exception(EngineError(reason))
        self._waiting.clear()
        self._engine = _Stopped(reason)
        for job in jobs:
            job()


class _Stopped:
    """Stands in for the engine once the pump has stopped: what was posted too late fails by name."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        raise EngineError(self._reason)


def _fulfil(future: Future[T], make: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(make())
    except (EngineError, UserError, ValueError, OSError) as error:
        future.set_exception(error)
    finally:
        if not future.done():  # anything else ends the pump, and must not leave the caller waiting
            future.set_exception(EngineError("the engine failed"))
