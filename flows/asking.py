"""The question to a person, asked beside a canary that goes on watching.

ask -> a thread runs the flow `canary_approval`, which pauses for its form -> left: the form is withdrawn
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Self
from uuid import UUID

from tasks.paths import ServiceFolder


class Asking:
    """Asks at most once; what was asked and not answered is withdrawn at the end."""

    def __init__(self, canary: str, folder: ServiceFolder) -> None:
        self._parameters = {"canary": canary, "home": str(folder.home), "name": folder.name}
        self._run: UUID | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._thread is not None and self._run is not None and self._thread.is_alive():
            self._withdraw(self._run)
            self._thread.join(timeout=1.0)

    def ask(self) -> None:
        """Open the form in the Prefect UI, unless it is open."""
        from prefect import get_client
        from prefect.flow_engine import run_flow

        from flows.canary_approval import canary_approval

        if self._thread is not None:
            return
        with get_client(sync_client=True) as client:
            flow_run = client.create_flow_run(canary_approval, parameters=self._parameters)
        self._run = flow_run.id
        given = {"flow_run": flow_run, "parameters": self._parameters}
        self._thread = threading.Thread(target=run_flow, args=(canary_approval,), kwargs=given, daemon=True)
        self._thread.start()

    def _withdraw(self, run: UUID) -> None:
        """Let the flow end, if it pauses already: nobody's answer counts any more."""
        from prefect import get_client
        from prefect.flow_runs import resume_flow_run

        from flows.canary_approval import WITHDRAWN

        with get_client(sync_client=True) as client:
            state = client.read_flow_run(run).state
        if state is not None and state.is_paused():
            with suppress(RuntimeError):  # what the form asks is saved just after the pause: a second later it is there
                resume_flow_run(run, run_input={"approve": False, "why": WITHDRAWN})
