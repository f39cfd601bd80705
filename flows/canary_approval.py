"""A person is asked, in the Prefect UI, whether a candidate is to be promoted.

form (approve, why) -> answer.json of the canary, which goes on watching the sessions meanwhile
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow
from prefect.flow_runs import pause_flow_run
from prefect.input import RunInput
from pydantic import Field

from tasks.canary.standing_status import Answer, write_answer
from tasks.paths import ServiceFolder

DAYS = 7
WITHDRAWN = "withdrawn: the canary has ended, or was interrupted"
_POLL_SECONDS = 2


class Approval(RunInput):
    """What the form asks."""

    approve: bool = Field(default=False, description="promote the candidate; otherwise it is rolled back")
    why: str = Field(default="", description="kept with the answer")


@flow(name="canary_approval", flow_run_name="approve {canary}?")
def canary_approval(canary: str, home: str, name: str) -> None:
    """Pause until the form is filled in, or withdrawn."""
    answer = pause_flow_run(wait_for_input=Approval, timeout=DAYS * 86_400, poll_interval=_POLL_SECONDS)
    if answer is not None and answer.why != WITHDRAWN:
        given = Answer(approved=answer.approve, who="the form in the Prefect UI", why=answer.why)
        write_answer(ServiceFolder(Path(home), name), canary, given)
