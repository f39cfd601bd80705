"""What tests of several folders use: chats of three kinds of template, and which processes are left."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from models.chat import Chat
from models.starter import train_tokenizer

TEMPLATES = ("qwen3", "llama3", "smollm2")
LLAMA = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`, with the files on vLLM servers as one: the servers are started once."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return re.sub(r"/test_vllm_\w+.py$", "/test_vllm", super()._split_scope(nodeid))

    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


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


@pytest.fixture(scope="session")
def alive() -> Callable[[str], list[str]]:
    """Command lines of living processes with a mark in their environment."""

    def found(mark: str) -> list[str]:
        lines = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                ended = (folder / "stat").read_text().split()[2] == "Z"
                if mark.encode() in (folder / "environ").read_bytes() and not ended:
                    lines.append((folder / "cmdline").read_text().replace("\0", " "))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return lines

    return found


@pytest.fixture(scope="session")
def descendants() -> Callable[[int], set[int]]:
    """Ids of the living processes that come from one, those included whose environment or title is their own."""

    def found(pid: int) -> set[int]:
        children: set[int] = set()
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            children |= {int(child) for child in file.read_text().split()}
        return children.union(*map(found, children))

    return found


@pytest.fixture(scope="session")
def living() -> Callable[[set[int]], set[int]]:
    """Those of some processes that have not ended; a zombie has."""

    def found(pids: set[int]) -> set[int]:
        left = set()
        for pid in pids:
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state != "Z":
                left.add(pid)
        return left

    return found


@pytest.fixture(scope="session")
def killed() -> Callable[[Callable[[], None]], None]:
    """Does some work in a process of its own, which has to end by SIGKILL."""

    def die(work: Callable[[], None]) -> None:
        child = os.fork()
        if child == 0:
            try:
                work()
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    return die


@pytest.fixture(params=TEMPLATES)
def template(request: pytest.FixtureRequest, chats: dict[str, Chat]) -> Chat:
    """Each of the three in turn."""
    return chats[request.param]


@pytest.fixture(scope="session")
def moe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 of experts with a tokenizer of the starter's kind: 2 layers, 8 experts, 2 of them a token."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    folder = tmp_path_factory.mktemp("moe")
    tokenizer = train_tokenizer(["def f(x):\n    return x + 1\n", "line 3 failed: fix it"] * 20, 400)
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, moe_intermediate_size=24,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_experts=8,
        num_experts_per_tok=2, norm_topk_prob=True, max_position_embeddings=256, initializer_range=0.2,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
