"""TRL's GRPO trainer as a side of `training.py`: it runs in a Python of its own (`trl_side.py` says how), plus `peft`.

Same model, problems, sandboxes, hidden checks, limits, LoRA and optimizer settings; a generation batch is as many
groups as an iteration of ours has, and is trained in as many optimizer steps. For each line on stdin it makes and
trains on some batches, saves the adapter, and answers with one line: {"seconds", "sampling_seconds", "tokens",
"adapter", "memory_mb"}.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl_side import ON_CPU, POOLS, PROBLEMS, RepairTools, grpo, read_problems

from tasks.rollout.environments import environment_of
from tasks.rollout.sandbox import WarmPool

VERIFIERS: list[WarmPool] = []


class VerifiedRepair(RepairTools):
    """The tools, and the hidden checks as the reward; once handed in, files stay as they are."""

    def reset(self, **row: Any) -> None:
        super().reset(**row)
        self._handed_in: dict[str, str] | None = None

    def submit(self) -> str:
        """Hand the files in."""
        self._handed_in = self._handed_in or dict(self._session.files)
        return super().submit()

    def get_reward(self) -> float:
        """1 when all hidden checks pass."""
        problem, files = self._session.problem, self._handed_in or self._session.files
        found = environment_of(problem).verify(problem, files, VERIFIERS[0])
        return float(found.passed == found.total)


class Clock:
    """Seconds and sampled tokens since the last look, and how many of the seconds went to sampling."""

    def __init__(self, trainer: GRPOTrainer) -> None:
        self._started, self._sampling, self._tokens = time.perf_counter(), 0.0, 0
        generate = trainer._generate

        def watched(prompts: Any) -> Any:
            started = time.perf_counter()
            made = generate(prompts)
            self._sampling += time.perf_counter() - started
            self._tokens += sum(map(sum, made[2]))
            return made

        trainer._generate = watched

    def read(self) -> dict[str, float]:
        return {
            "seconds": time.perf_counter() - self._started,
            "sampling_seconds": self._sampling,
            "tokens": self._tokens,
            "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }

    def start(self) -> None:
        self._started, self._sampling, self._tokens = time.perf_counter(), 0.0, 0


class Turns(TrainerCallback):
    """Hands over after every `steps` optimizer steps, and goes on when told to."""

    def __init__(self, steps: int, answers: Any) -> None:
        self.steps, self.answers = steps, answers
        self.trainer: GRPOTrainer | None = None
        self.clock: Clock | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.steps:
            return
        assert self.trainer is not None and self.clock is not None
        found = self.clock.read()
        adapter = Path(args.output_dir, f"adapter-{state.global_step}")
        self.trainer.model.save_pretrained(str(adapter))
        print(json.dumps({**found, "adapter": str(adapter)}), file=self.answers, flush=True)
        if not sys.stdin.readline():
            control.should_training_stop = True
        self.clock.start()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--problems", type=Path, required=True, help="a pack's problems.jsonl")
    parser.add_argument("--settings", type=json.loads, required=True, help="what both sides share, as JSON")
    given = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr
    read_problems(given.problems)
    with WarmPool(2, "agent") as agent, WarmPool(2, "verifier") as verifier, tempfile.TemporaryDirectory() as out:
        POOLS.append(agent)
        VERIFIERS.append(verifier)
        turns = Turns(given.settings["every"] * given.settings["minibatches"], answers)
        turns.trainer = trainer = trainer_for(given.model, given.settings, out, turns)
        turns.clock = Clock(trainer)
        print(json.dumps({"ready": True}), file=answers, flush=True)
        if sys.stdin.readline():
            turns.clock.start()
            trainer.train()


def trainer_for(model: Path, settings: dict[str, Any], out: str, turns: Turns) -> GRPOTrainer:
    config = GRPOConfig(
        output_dir=out,
        **ON_CPU,
        save_strategy="no",
        seed=settings["seed"],
        max_steps=settings["minibatches"] * settings["iterations"],
        per_device_train_batch_size=settings["rollouts"] // settings["minibatches"],
        steps_per_generation=settings["minibatches"],
        num_generations=settings["group"],
        max_tool_calling_iterations=max(problem.limits.turns for problem in PROBLEMS.values()) - 1,
        beta=0.0,
        epsilon=settings["clip_low"],
        epsilon_high=settings["clip_high"],
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=settings["warmup_steps"] * settings["minibatches"],
        adam_beta2=settings["beta2"],
        max_grad_norm=settings["grad_clip"],
    )
    lora = LoraConfig(r=settings["lora_r"], lora_alpha=settings["lora_alpha"], target_modules="all-linear")
    return grpo(model, config, VerifiedRepair, peft_config=lora, callbacks=[turns])


if __name__ == "__main__":
    main()
