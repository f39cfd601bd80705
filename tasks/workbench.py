"""What the flows of one process share: engine, trainer, sandboxes, registry, tracker; each made on first use.

open_bench(run, parts) -> Bench, the same one for every flow within; closed, with all it made, at the end
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from data_contracts.errors import UserError
from data_contracts.records import Sampling, policy_name
from models.mlflow_client import tracking_uri
from models.policy import Base, LoraSpec, init_adapter, init_whole, load_base, publish_folder
from models.release import Release
from tasks.paths import RunFolder
from tasks.release.config import ReleaseConfig
from tasks.release.opening import open_registry
from tasks.reward.config import RewardConfig
from tasks.rollout.config import RolloutConfig
from tasks.training.config import TrainingConfig

if TYPE_CHECKING:
    from models.chat import Chat
    from models.registry import Registry
    from tasks.rollout.engine import Engine
    from tasks.rollout.sandbox import WarmPool
    from tasks.rollout.scheduler import StartAgent
    from tasks.rollout.slot_engine import SlotEngine
    from tasks.rollout.stream import Stream
    from tasks.tracking import Tracker
    from tasks.training.client import Trainer

_current: ContextVar[Bench | None] = ContextVar("bench", default=None)


@dataclass(frozen=True, slots=True)
class Parts:
    """The settings a bench is made from; `base` is the base model's folder, `start` the first policy's origin."""

    base: str
    start: str
    rollout: RolloutConfig
    reward: RewardConfig
    training: TrainingConfig
    release: ReleaseConfig


@contextmanager
def open_bench(run: RunFolder, parts: Parts) -> Iterator[Bench]:
    """The bench of `run`: the one that is open around this call, else a new one that closes with it."""
    around = _current.get()
    if around is not None and around.run == run:
        yield around
        return
    with ExitStack() as stack:
        bench = Bench(run, parts, stack)
        token = _current.set(bench)
        try:
            yield bench
        finally:
            _current.reset(token)


class Bench:
    """One run's tools. Not for use by two threads at a time."""

    def __init__(self, run: RunFolder, parts: Parts, stack: ExitStack) -> None:
        self.run, self.parts = run, parts
        self._stack = stack
        self._served: list[str] = []
        self._in_training: int | None = None

    @cached_property
    def base(self) -> Base:
        return load_base(self.parts.base)

    @cached_property
    def chat(self) -> Chat:
        from models.chat import Chat

        try:
            return Chat(self.base.tokenizer)
        except ValueError as error:
            raise UserError(f"{self.parts.base}: {error}.") from error

    @property
    def window(self) -> int:
        """Tokens that the base model's context holds."""
        from tasks.rollout.slot_pool import context_limit

        return context_limit(self.base.model.config)

    @cached_property
    def engine(self) -> Engine:
        """What rollouts and evaluations are sampled by; vLLM's servers, if the recipe says so, start here."""
        rollout = self.parts.rollout
        if rollout.engine == "slots":
            return self.new_engine()
        from tasks.rollout.vllm_engine import open_vllm

        return self._stack.enter_context(open_vllm(self.base, rollout.vllm, self.run.root / "logs"))

    def new_engine(self) -> SlotEngine:
        """Another engine over the same base, in this process, whose names are its own: what the gateway serves by."""
        from tasks.rollout.slot_engine import SlotEngine

        return SlotEngine.from_base(self.base, slots=self.parts.rollout.capacity)

    @cached_property
    def trainer(self) -> Trainer:
        """Starts the worker and returns; the first command waits for its imports."""
        from tasks.training.client import Trainer

        return self._stack.enter_context(Trainer(self.parts.base, self.run.root / "logs", self.parts.training))

    @cached_property
    def agent_pool(self) -> WarmPool:
        """Sandboxes in which what an agent wrote runs while it works."""
        return self._pool("agent", self.parts.rollout.tool_workers)

    @cached_property
    def verifier_pool(self) -> WarmPool:
        """Sandboxes whose parent never ran anything of an agent's."""
        return self._pool("verifier", self.parts.reward.verifier_workers)

    @cached_property
    def start_agent(self) -> StartAgent:
        """How a training rollout begins, or one that branches off another."""
        from tasks.rollout.branching import replaying
        from tasks.rollout.environments import open_session
        from tasks.rollout.scheduler import agents

        config, pool = self.parts.rollout, self.agent_pool
        sampling = Sampling(temperature=config.temperature, top_p=config.top_p)
        return replaying(agents(self.chat, lambda problem: open_session(problem, pool), sampling, config))

    @cached_property
    def stream(self) -> Stream:
        """The training rollouts of all iterations."""
        from tasks.rollout.scheduler import Scheduler
        from tasks.rollout.stream import Stream

        config = self.parts.rollout
        scheduler = self._stack.enter_context(Scheduler(self.engine, self.start_agent, config))
        return Stream(scheduler, lambda number: self.run.iteration(number).journal, config.max_staleness)

    @cached_property
    def registry(self) -> Registry:
        """Reconciled when it is opened, so before any flow looks at it."""
        return open_registry(self.run.home, self.parts.release)

    @cached_property
    def tracker(self) -> Tracker:
        from tasks.tracking import Tracker

        name = self.parts.release.name
        return Tracker(self.tracking_uri, self.run.home / "mlartifacts", name, self.run.id, self.run.id)

    @property
    def tracking_uri(self) -> str:
        return tracking_uri(self.run.home)

    def policy(self, number: int) -> Path:
        """The folder of a policy version; number 0 is made here: fresh, or the champion's."""
        folder = self.run.policy(number)
        if not folder.exists():
            if number:
                raise UserError(f"{folder} is missing: the iteration that makes it is not done, run the recipe again.")
            self._first_policy(folder)
        return folder

    def serve(self, number: int) -> str:
        """Have the engine serve a policy version, and no other but those of turns under way; returns its name."""
        version = policy_name(number)
        if version not in self._served:
            self.engine.load_adapter(version, self.policy(number))
            kept = [name for name in self._served if self.stream.sampling_under(name)]
            for name in set(self._served) - set(kept):
                self.engine.drop_adapter(name)
            self._served = [*kept, version]
        return version

    def trainer_at(self, number: int) -> Trainer:
        """The trainer with a policy version loaded, and the optimizer's state that belongs to it."""
        if self._in_training != number:
            checkpoint = self.run.iteration(number - 1).checkpoint if number else None
            self.trainer.load(self.policy(number), checkpoint)
            self._in_training = number
        return self.trainer

    def trainer_scoring(self, number: int) -> Trainer:
        """The trainer with a policy version loaded, only to score: without the optimizer's state."""
        self.trainer.load(self.policy(number))
        self._in_training = None
        return self.trainer

    def trained(self, number: int) -> None:
        """Note that the trainer holds this policy version now."""
        self._in_training = number

    def champion(self) -> Release | None:
        """The champion, if there is one; one that rests on another base is a UserError."""
        release = self.registry.champion()
        if release is not None and release.digests["base"] != self.base.digest:
            name = self.parts.release.name
            raise UserError(
                f"the champion of {name!r} rests on another base than {self.parts.base}: "
                "give this agent a name of its own (release.name in the recipe)."
            )
        return release

    def _first_policy(self, folder: Path) -> None:
        if self.parts.start == "champion":
            champion = self.champion()
            if champion is None:
                name = self.parts.release.name
                raise UserError(f"{name!r} has no champion to start from: set policy.start = 'base'.")
            scratch = folder.with_name(f".{folder.name}.copy")
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(champion.policy_path, scratch)
            publish_folder(scratch, folder)
            return
        training = self.parts.training
        if training.weights == "full":
            init_whole(self.base, folder)
            return
        spec = LoraSpec(r=training.lora_r, alpha=training.lora_alpha, targets=training.lora_targets)
        init_adapter(self.base, spec, folder, training.seed)

    def _pool(self, name: str, size: int) -> WarmPool:
        from tasks.rollout.sandbox import WarmPool

        pool = WarmPool(size, name, require_isolation=self.parts.rollout.require_isolation)
        return self._stack.enter_context(contextlib.closing(pool))
