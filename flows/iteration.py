"""One iteration, top to bottom: what every loop over iterations repeats.

select -> rollout -> reward -> training
"""

from __future__ import annotations

from collections.abc import Callable

from flows.curriculum import select
from flows.recipe import Recipe
from flows.reward import judge
from flows.rollout import collect
from flows.training import learn
from tasks.workbench import Bench


def iterate(bench: Bench, recipe: Recipe, iteration: int, say: Callable[[str], None] = lambda line: None) -> None:
    """Do an iteration, or what is left of it; its metrics are the last product. `say` hears how the rollouts get on."""
    select(bench, recipe, iteration)
    collect(bench, recipe, iteration, say)
    with bench.stream.going_on():
        judge(bench, recipe, iteration)
        learn(bench, recipe, iteration)
