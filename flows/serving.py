"""The process that runs deployments for `ratchet up`: python -m flows.serving HOME RECIPE

post_train: the recipe as a form, and by event when drift persists; drift: every hour
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from prefect import serve
from prefect.deployments.runner import EntrypointType, RunnerDeployment

from flows.drift import drift, drift_trigger
from flows.post_train import post_train
from flows.recipe import Recipe, load_recipe

DRIFT_EVERY = timedelta(hours=1)


def deployments(home: Path, recipe: Recipe) -> tuple[RunnerDeployment, RunnerDeployment]:
    """The two deployments; a new run by drift starts from the champion."""
    parameters = {"recipe": recipe.model_dump(mode="json"), "home": str(home)}
    training = RunnerDeployment.from_flow(
        post_train,
        name="post_train",
        description="Post-train a recipe's policy; released only when it is measured to be better.",
        parameters=parameters,
        triggers=[drift_trigger(recipe, home)],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    watching = RunnerDeployment.from_flow(
        drift,
        name="drift",
        description="The champion's live sessions against the reference it was released with.",
        parameters=parameters,
        interval=DRIFT_EVERY,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    return training, watching


def main(home: str, recipe: str) -> None:
    """Serve both until the process is ended; one flow run at a time, since each takes the whole machine."""
    serve(*deployments(Path(home), load_recipe(recipe)), limit=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
