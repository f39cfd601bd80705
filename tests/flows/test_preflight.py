"""What a run is refused for before anything is spent."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.errors import UserError
from flows.preflight import preflight
from flows.recipe import Recipe


def bench(*, shows_tools: bool = True) -> Any:
    chat = SimpleNamespace(shows_tools=shows_tools, ids=lambda text: [0] * 10)
    return SimpleNamespace(trainer=None, chat=chat, window=512, champion=lambda: None)


def test_a_summary_that_does_not_fit_the_window_is_refused() -> None:
    context = {"policy": "compact", "compact_at": 300, "observation_tokens": 64, "summary_tokens": 64}
    recipe = Recipe.model_validate({"rollout": {"max_turn_tokens": 64, "context": context}})
    preflight(bench(), recipe)
    wider = context | {"compact_at": 311}
    with pytest.raises(UserError, match="set compact_at to 310 or less"):
        preflight(bench(), Recipe.model_validate({"rollout": {"max_turn_tokens": 64, "context": wider}}))


def test_a_base_whose_template_hides_the_tools_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    own = Recipe.model_validate({"policy": {"base": "my/base"}})
    with caplog.at_level(logging.WARNING):
        preflight(bench(), own)
        preflight(bench(shows_tools=False), Recipe())  # the starter knows its tools
        assert caplog.messages == []
        preflight(bench(shows_tools=False), own)
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "the chat template of my/base shows the model no tools"
    ]
