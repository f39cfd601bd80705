"""The process that runs deployments for `ratchet up`: python -m flows.serving HOME RECIPE

Prefect server set up -> every deployment served: forms, schedules, events
"""

from __future__ import annotations

import sys
from pathlib import Path

from prefect import serve

from flows.automations import set_up
from flows.deployments import deployed, served
from flows.recipe import load_recipe

AT_ONCE = 8
"""Flow runs at a time: a canary waits for days, and keeps none of the others."""


def main(home: str, recipe: str) -> None:
    """Serve all deployments until the process is ended; their schedules go on with its next life."""
    set_up()
    serve(*map(served, deployed(load_recipe(recipe), Path(home))), limit=AT_ONCE, pause_on_shutdown=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
