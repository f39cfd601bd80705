"""A real chat, a tiny random model behind the real engine, a session to play in; and two vLLM servers, started once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from data_contracts.records import Check, Limits, Problem, Rollout, Sampling, ToolCall
from models.chat import Chat
from models.policy import (
    Base,
    LoraSpec,
    adapter_state,
    init_adapter,
    load_base,
    merged_model,
    trainable_policy,
    write_adapter,
)
from models.starter import train_tokenizer
from tasks.curriculum.generator import generate
from tasks.rollout.agent import Agent, Job
from tasks.rollout.calls import run_calls
from tasks.rollout.config import RolloutConfig
from tasks.rollout.engine import Completion, Engine
from tasks.rollout.environments import open_session
from tasks.rollout.environments.base import Session, ToolResult
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.scheduler import run_sessions
from tasks.rollout.slot_engine import SlotEngine
from tasks.rollout.vllm_config import VllmConfig
from tasks.rollout.vllm_engine import trainers_logprobs
from tasks.rollout.vllm_server import Endpoint

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
    """A session on a made-up problem, to be played turn by turn; `with_chat` replaces the chat, `kind` its class."""

    def make(
        *, turns: int = 4, tokens: int = 200, with_chat: Chat = chat, kind: Any = playground, **options: Any
    ) -> Driver:
        problem = make_problem(turns=turns, tokens=tokens)
        return Driver(problem, with_chat, kind(problem), **options)

    return make


ROOT = Path(__file__).parents[3]
STARTER = ROOT / "models" / "starter"
OWNER = """
import json, sys
from contextlib import closing
from pathlib import Path
from tasks.rollout.vllm_config import VllmConfig
from tasks.rollout.vllm_server import Servers
config, base, logs = sys.argv[1:]
with closing(Servers(VllmConfig.model_validate_json(config), base, Path(logs))) as servers:
    asked = "\\n"
    while asked:
        up = servers.start(Path(asked.strip()) if asked.strip() else None)
        print(json.dumps([[url, str(log)] for url, log in up]), flush=True)
        asked = sys.stdin.readline()
"""
"""Starts servers as a run does, over other weights when asked, and is there to be killed as a run may be."""


@dataclass(frozen=True)
class Server:
    """A vLLM server; its supervisor leads to it."""

    url: str
    log: Path
    supervisor: int
    service: int

    @property
    def processes(self) -> list[str]:
        """What lives of it: all that it starts is of its supervisor's session, whatever they call themselves."""
        return [line for _, session, line in processes() if session == self.supervisor]

    def kill(self) -> None:
        """SIGKILL for the server itself; its supervisor and its engine's processes are left to see to that."""
        os.kill(self.service, signal.SIGKILL)


@dataclass
class Served:
    """Two servers of the starter model, and policy versions for it."""

    base: Base
    config: VllmConfig
    owner: subprocess.Popen[str]
    servers: list[Server]
    home: Path

    def hear(self) -> list[Endpoint]:
        """Wait for the servers that the owner starts."""
        assert self.owner.stdout is not None
        up = json.loads(self.owner.stdout.readline() or "[]")
        assert len(up) == self.config.servers, "the servers did not come up: their owner has said why"
        supervisors = sorted(children(self.owner.pid))
        self.servers = [
            Server(url, Path(log), pid, *children(pid)) for (url, log), pid in zip(up, supervisors, strict=True)
        ]
        return self.endpoints

    def restart(self, weights: Path | None) -> list[Endpoint]:
        """Have the owner start them anew over a model folder."""
        assert self.owner.stdin is not None
        self.owner.stdin.write(f"{weights or ''}\n")
        self.owner.stdin.flush()
        return self.hear()

    @property
    def endpoints(self) -> list[Endpoint]:
        return [Endpoint(server.url, server.log) for server in self.servers]

    def adapter(self, name: str, scale: float) -> Path:
        """An adapter that moves the base by a random matrix of this scale in every layer; 0: not at all."""
        out = self.home / "policies" / name
        if not out.exists():
            fresh = init_adapter(self.base, LoraSpec(r=4, alpha=8), self.home / "fresh", seed=0)
            model = trainable_policy(self.base, fresh)
            noise = torch.Generator().manual_seed(len(name) + int(name[-5:]))
            with torch.no_grad():
                for parameter in (p for n, p in model.named_parameters() if "lora_B" in n):
                    parameter.normal_(std=scale, generator=noise) if scale else parameter.zero_()
            write_adapter(adapter_state(model), model.peft_config["default"], out)
        return out

    def whole(self, name: str, adapter: Path) -> Path:
        """A model folder: the base with an adapter merged into its weights."""
        out = self.home / "policies" / name
        if not out.exists():
            merged_model(self.base, adapter).save_pretrained(out)
            self.base.tokenizer.save_pretrained(out)
        return out

    def logprobs(self, path: Path | None, tokens: Sequence[int], temperature: float = 1.0) -> list[float]:
        """By the trainer's side: transformers with the adapter, in float32."""
        return trainers_logprobs(self.base)(path, tokens, [temperature] * (len(tokens) - 1))

    def sessions(
        self, engine: Engine, pool: WarmPool, jobs: Sequence[Job], version: str, temperature: float,
        open_session: Callable[[Problem, WarmPool], Session] = open_session, **more: Any,
    ) -> list[Rollout]:  # fmt: skip
        return run_sessions(
            jobs, engine, Chat(self.base.tokenizer), open_session=lambda problem: open_session(problem, pool),
            policy_version=version, sampling=Sampling(temperature=temperature), **more,
        )  # fmt: skip


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two servers take 80 s to come up: one pair for all tests, of which the last end it."""
    home = tmp_path_factory.mktemp("vllm")
    config = VllmConfig(servers=2, max_model_len=1024, threads=1, reload=True, start_seconds=1200)
    command = [sys.executable, "-c", OWNER, config.model_dump_json(), str(STARTER), str(home / "logs")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        served = Served(load_base(STARTER), config, owner, [], home)
        served.hear()
        yield served


@pytest.fixture(scope="session")
def make_jobs() -> Callable[..., list[Job]]:
    """Jobs on generated repair problems."""

    def make(problems: int, rollouts: int, seed: int) -> list[Job]:
        found = generate(seed, "train", "short", problems)
        return [Job(p, p.id, i, 1000 * n + i, 0, f"run-{seed}") for n, p in enumerate(found) for i in range(rollouts)]

    return make


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def processes() -> Iterator[tuple[int, int, str]]:
    """Processes that are no zombies: id, session, command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            line = (folder / "cmdline").read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != "Z":
            yield int(folder.name), int(fields[3]), line
