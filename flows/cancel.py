"""A run that was started by hand can be cancelled in the Prefect UI too, where no runner of Prefect's watches it.

UI sets the flow run's state to Cancelling -> a thread sees it -> a signal -> an exception in the main thread
-> all that is open closes, innermost first -> the state Cancelled
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.objects import FlowRun, State

LOOK_SECONDS = 2.0
"""Time between two looks at the state: each is one small request to a server on this machine."""
_SIGNAL = signal.SIGUSR1


class RunCancelled(Exception):
    """The run was cancelled in the Prefect UI; what it had started has ended."""


class _Interrupt(KeyboardInterrupt):
    """On its way up through the flow: as with Ctrl-C, nothing but what closes things stands in its way."""


@contextmanager
def cancellable(flow: Flow[..., Any]) -> Iterator[Flow[..., Any]]:
    """The flow, to be called in the main thread; raises `RunCancelled` once it has been cancelled and has closed."""
    watch = _Watch()
    before = signal.signal(_SIGNAL, _interrupt)
    try:
        yield flow.with_options(on_running=[watch.begin])
    except _Interrupt as interrupt:
        watch.settle()
        raise RunCancelled(str(interrupt)) from None
    finally:
        signal.signal(_SIGNAL, signal.SIG_IGN)  # too late now: the flow is over
        watch.end()
        signal.signal(_SIGNAL, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise _Interrupt("cancelled in the Prefect UI")


class _Watch:
    """A thread that looks at the state of one flow run."""

    def __init__(self) -> None:
        self._flow_run: UUID | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
        """The flow's hook: it runs, and has an id."""
        self._flow_run = flow_run.id
        self._thread = threading.Thread(target=self._look, args=(flow_run.id,), name="cancelled?", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def settle(self) -> None:
        """Say that the run has ended, in the state that the UI waits for."""
        from prefect import get_client
        from prefect.states import Cancelled

        assert self._flow_run is not None
        with get_client(sync_client=True) as client:
            message = "Cancelled; the same `ratchet run` goes on with it."
            client.set_flow_run_state(self._flow_run, Cancelled(message=message), force=True)

    def _look(self, flow_run: UUID) -> None:
        import httpx
        from prefect import get_client

        with get_client(sync_client=True) as client:
            while not self._stop.wait(LOOK_SECONDS):
                try:
                    state = client.read_flow_run(flow_run).state
                except httpx.HTTPError:  # a busy server; the next look is soon
                    continue
                if state is not None and (state.is_cancelling() or state.is_cancelled()):
                    signal.pthread_kill(_main(), _SIGNAL)
                    return


def _main() -> int:
    ident = threading.main_thread().ident
    assert ident is not None
    return ident
