"""Chats of three kinds of template, each over a byte-level tokenizer that has its special tokens."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest

from models.chat import Chat
from models.starter import train_tokenizer

TEMPLATES = ("qwen3", "llama3", "smollm2")
LLAMA = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"]


@pytest.fixture(scope="session")
def chats() -> dict[str, Chat]:
    """By name; the templates behave as those of the models do, and are in tests/templates."""
    texts = ["def f(x):\n    return x + 1\n", "<think>\nline 3 failed\n</think>\n\nfix it"] * 20
    plain, found = train_tokenizer(texts, 500), {}
    for name in TEMPLATES:
        tokenizer = deepcopy(plain)
        if name == "llama3":
            tokenizer.add_special_tokens({"additional_special_tokens": LLAMA, "bos_token": LLAMA[0]})
            tokenizer.eos_token = "<|eot_id|>"
        tokenizer.chat_template = Path(__file__).with_name("templates").joinpath(f"{name}.jinja").read_text()
        found[name] = Chat(tokenizer)
    return found


@pytest.fixture(params=TEMPLATES)
def template(request: pytest.FixtureRequest, chats: dict[str, Chat]) -> Chat:
    """Each of the three in turn."""
    return chats[request.param]
