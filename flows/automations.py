"""What a Prefect server of ours is set up with beside the deployments: who may promote, and what ends lost runs.

server -> global concurrency limit `ratchet-promoter`, automation over heartbeats;  again -> the same, once
"""

from __future__ import annotations

from datetime import timedelta

from prefect import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

PROMOTER = "ratchet-promoter"
"""Global concurrency limit: held by whoever moves the champion."""
ZOMBIES = "ratchet: runs without a heartbeat have crashed"
SILENCE = timedelta(minutes=5)
"""Five heartbeats (flows/services.py): a busy machine delays one or two."""
_HEARTBEAT = "prefect.flow-run.heartbeat"
_AT_REST = ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Suspended")
"""A run in these states sends no heartbeats."""


def set_up(silence: timedelta = SILENCE) -> None:
    """Make the server in PREFECT_API_URL ready; what it has already is brought up to date."""
    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(PROMOTER, 1)
        wanted = zombies(silence)
        found = client.read_automations_by_name(wanted.name)
        if found:
            client.update_automation(found[0].id, wanted)
        else:
            client.create_automation(wanted)


def zombies(silence: timedelta) -> AutomationCore:
    """A flow run that has sent a heartbeat and then nothing for so long is marked as crashed."""
    return AutomationCore(
        name=ZOMBIES,
        description="Its process is gone: killed, out of memory, or its machine is. Give the run again: it goes on.",
        trigger=EventTrigger(
            after={_HEARTBEAT},
            expect={_HEARTBEAT, *(f"prefect.flow-run.{state}" for state in _AT_REST)},
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=silence,
        ),
        actions=[
            ChangeFlowRunState(
                name=None,
                state=StateType.CRASHED,
                force=False,
                message=f"no heartbeat for {silence.total_seconds():g} s: its process is gone",
            )
        ],
    )
