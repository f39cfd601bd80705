"""What a run rests on, loaded and looked at before anything is spent.

bench + recipe -> trainer started, base loaded, champion fits, context policy fits the window -> or a UserError
"""

from __future__ import annotations

import logging

from flows.recipe import Recipe
from tasks.rollout.context import check_window
from tasks.workbench import Bench

_LOG = logging.getLogger(__name__)


def preflight(bench: Bench, recipe: Recipe) -> None:
    """Refuse a run that could not end well, with a sentence; say what its agent will not be told."""
    bench.trainer  # noqa: B018 - its imports take as long as everything up to the first batch
    bench.chat  # noqa: B018 - refuses a base that does not load
    rollout = recipe.rollout
    if rollout.context.policy == "compact":
        check_window(rollout.context, rollout.max_turn_tokens, bench.chat, bench.window)
    bench.champion()
    own_base = recipe.policy.base != type(recipe.policy)().base
    if own_base and not bench.chat.shows_tools:
        _LOG.warning(
            "the chat template of %s shows the model no tools: it calls them only if it was trained to, or if the "
            "problems' prompts describe them",
            recipe.policy.base,
        )
