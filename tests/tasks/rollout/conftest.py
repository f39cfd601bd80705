"""A real chat, a tiny random model behind the real engine, and a session to play in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from data_contracts.records import Check, Limits, Problem, Rollout, Sampling, ToolCall
from models.chat import Chat
from models.starter import train_tokenizer
from tasks.rollout.agent import Agent, Job
from tasks.rollout.calls import run_calls
from tasks.rollout.config import RolloutConfig
from tasks.rollout.engine import Completion
from tasks.rollout.environments.base import ToolResult
from tasks.rollout.slot_engine import SlotEngine

VOCABULARY = 768
TEXTS = [
    "def add(a, b):\n    return a + b\n",
    "the tool says: error: line 3 failed, expected 4",
    "fix the function",
] * 3


@pytest.fixture(scope="session")
def chat() -> Chat:
    return Chat(train_tokenizer(TEXTS, VOCABULARY))


@pytest.fixture
def make_problem() -> Callable[..., Problem]:
    def make(name: str = "p", *, turns: int = 4, tokens: int = 200) -> Problem:
        check = (Check(name="c", code="assert True"),)
        limits = Limits(turns=turns, tokens=tokens)
        return Problem(
            id=name, prompt=f"fix {name}", files={"m.py": "a = 1\n"}, visible=check, hidden=check,
            solution={"m.py": "a = 2\n"}, limits=limits,
        )  # fmt: skip

    return make


class Playground:
    """A session whose tools are `look` (text of any length), `test`, `submit`; `delay` seconds a call."""

    def __init__(self, problem: Problem, delay: Callable[[], float] = lambda: 0.0) -> None:
        self.problem, self.files, self.visible = problem, dict(problem.files), None
        self.called: list[ToolCall] = []
        self._delay = delay

    def messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self.problem.prompt}]

    def tools(self) -> list[dict[str, Any]]:
        return []

    def call(self, call: ToolCall) -> ToolResult:
        time.sleep(self._delay())
        self.called.append(call)
        if call.name == "look":
            return ToolResult("line " * int(call.arguments.get("n", 1)))
        if call.name == "test":
            self.visible: tuple[int, int] | None = (1, 2)
            return ToolResult("1 of 2 passed")
        if call.name == "submit":
            return ToolResult("submitted", done=True)
        return ToolResult(f"error: no tool {call.name}", failed=True)


@pytest.fixture
def playground() -> type[Playground]:
    return Playground


@pytest.fixture
def make_engine() -> Callable[..., SlotEngine]:
    """An engine that serves one tiny random model as policy-00000."""

    def make(*, slots: int = 8) -> SlotEngine:
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=32, intermediate_size=256, tie_word_embeddings=True, max_position_embeddings=512,
            initializer_range=0.1,
        )  # fmt: skip
        model = Qwen3ForCausalLM(config).eval()
        engine = SlotEngine(lambda path: model, lambda path: "digest-0", slots=slots)
        engine.load_adapter("policy-00000", None)
        return engine

    return make


class Driver:
    """Plays the engine's part with completions that are written out, and runs the calls."""

    def __init__(
        self, problem: Problem, chat: Chat, session: Any, *, max_turn_tokens: int = 50, **options: Any
    ) -> None:
        job = Job(problem, "g", 1, seed=3, iteration=7, run_id="run")
        self.chat, self.session = chat, session
        self.sampled: list[tuple[list[int], list[float]]] = []
        self.contexts: list[list[int]] = []
        self.agent = Agent(
            job, session, chat, name="n", policy_version="policy-00000", sampling=Sampling(seed=3),
            config=RolloutConfig(max_turn_tokens=max_turn_tokens, **options),
        )  # fmt: skip

    def say(self, text: str, *, cut_at: int | None = None) -> Any:
        """One turn: `text` as the model's message, or its first tokens as one cut by length. Returns the request."""
        agent, request = self.agent, self.agent.request()
        ids = self.chat.completion(text)[:cut_at]
        assert len(ids) <= request.max_tokens
        logprobs = [-0.25 * (i + 1) for i in range(len(ids))]
        self.sampled.append((ids, logprobs))
        self.contexts.append(list(request.token_ids))
        reason = "stop" if cut_at is None else "length"
        done = Completion(ids, logprobs, reason, "policy-00000", "d" * 8, len(request.token_ids), 0, 0.5)
        calls = agent.take_completion(done)
        if agent.status is None:
            agent.take_results(run_calls(self.session, calls))
        return request

    def finish(self) -> Rollout:
        rollout = self.agent.finish()
        assert Rollout.model_validate_json(rollout.model_dump_json()) == rollout
        return rollout


@pytest.fixture
def drive(chat: Chat, make_problem: Callable[..., Problem], playground: type[Playground]) -> Callable[..., Driver]:
    """A session on a made-up problem, to be played turn by turn; `with_chat` replaces the chat."""

    def make(*, turns: int = 4, tokens: int = 200, with_chat: Chat = chat, **options: Any) -> Driver:
        problem = make_problem(turns=turns, tokens=tokens)
        return Driver(problem, with_chat, playground(problem), **options)

    return make
