"""A run that was started by hand can be cancelled in the Prefect UI too, where no runner of Prefect's watches it.

UI sets the flow run's state to Cancelling -> a thread sees it -> a signal -> an exception in the main thread
-> all that is open closes, innermost first -> the state Cancelled
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.objects import FlowRun

LOOK_SECONDS = 2.0
"""Time between two looks at the state: each is one small request to a server on this machine."""
_SIGNAL = signal.SIGUSR1


class RunCancelled(Exception):
    """The run was cancelled in the Prefect UI; what it had started has ended."""


class _Interrupt(KeyboardInterrupt):
    """On its way up through the flow: as with Ctrl-C, nothing but what closes things stands in its way."""


def run_cancellable(flow: Flow[..., Any], parameters: dict[str, Any]) -> None:
    """Run a flow in the main thread; raises what it raises, or `RunCancelled` once it was cancelled and has closed."""
    from prefect.flow_engine import run_flow

    flow_run = _flow_run(flow, parameters)
    try:
        with _Watch(flow_run.id):
            run_flow(flow, flow_run=flow_run, parameters=parameters)
    except _Interrupt as interrupt:
        _settle(flow_run.id)
        raise RunCancelled(str(interrupt)) from None


def _flow_run(flow: Flow[..., Any], parameters: dict[str, Any]) -> FlowRun:
    """A run of the flow's deployment, which `ratchet up` serves: without one the UI's Cancel can not be pressed."""
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Pending

    with get_client(sync_client=True) as client:
        try:
            deployment = client.read_deployment_by_name(f"{flow.name}/{flow.name}").id
        except ObjectNotFound:
            deployment = client.create_deployment(client.create_flow(flow), flow.name)
        given = flow.serialize_parameters(parameters)
        return client.create_flow_run_from_deployment(deployment, parameters=given, state=Pending())


def _settle(flow_run: UUID) -> None:
    """Say that the run has ended, in the state that the UI waits for."""
    from prefect import get_client
    from prefect.states import Cancelled

    with get_client(sync_client=True) as client:
        message = "Cancelled; the same `ratchet run` goes on with it."
        client.set_flow_run_state(flow_run, Cancelled(message=message), force=True)


class _Watch:
    """A thread that looks at the state of a flow run, and interrupts the main thread when it is to be cancelled."""

    def __init__(self, flow_run: UUID) -> None:
        self._flow_run = flow_run
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="cancelled?", daemon=True)
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(_SIGNAL, _interrupt)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(_SIGNAL, signal.SIG_IGN)  # too late now: the flow is over
        self._stop.set()
        self._thread.join()
        signal.signal(_SIGNAL, self._before)

    def _look(self) -> None:
        import httpx
        from prefect import get_client

        with get_client(sync_client=True) as client:
            while not self._stop.wait(LOOK_SECONDS):
                try:
                    state = client.read_flow_run(self._flow_run).state
                except httpx.HTTPError:  # a busy server; the next look is soon
                    continue
                if state is not None and (state.is_cancelling() or state.is_cancelled()):
                    signal.pthread_kill(_main(), _SIGNAL)
                    return


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise _Interrupt("cancelled in the Prefect UI")


def _main() -> int:
    ident = threading.main_thread().ident
    assert ident is not None
    return ident
