"""Context policies beside each other: success, tokens and seconds of long sessions in a small window.

    python tests/benchmarks/context.py [--adapter FOLDER] [--horizon long] [--problems 40] [--window 512]

The same problems, seeds and limits for every policy: the model's window is made `--window` tokens small, a session may
take 60 turns. `length` is that of a session in windows: the tokens of its prompt, messages and observations, were they
all in one context. `violations` counts turns whose context did not hold the task and its constraints word for word.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from data_contracts.records import Problem, Rollout, Sampling, Trajectory
from data_contracts.store import read_json, write_json
from models.chat import Chat
from models.policy import Base, load_base
from tasks.curriculum.generator import generate
from tasks.reward.config import RewardConfig
from tasks.reward.verify import verify_all
from tasks.rollout.config import RolloutConfig
from tasks.rollout.context import ContextConfig
from tasks.rollout.environments import open_session
from tasks.rollout.jobs import jobs_for
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.scheduler import run_sessions
from tasks.rollout.slot_engine import SlotEngine

ROOT = Path(__file__).parents[2]
VERSION = "policy-00000"
TURNS, TOKENS = 60, 4000


class Row(NamedTuple):
    """What one policy came to."""

    policy: str
    rollouts: list[Trajectory]
    lengths: list[int]
    seconds: float


def policies(window: int) -> dict[str, ContextConfig]:
    """Each policy with parameters that fit the window."""
    quarter = window // 4
    return {
        "keep": ContextConfig(policy="keep"),
        "clip": ContextConfig(policy="clip", observation_tokens=quarter),
        "externalise": ContextConfig(policy="externalise", observation_tokens=quarter, preview_tokens=quarter // 2),
        "compact": ContextConfig(
            policy="compact", compact_at=window // 2 - 32, observation_tokens=quarter, summary_tokens=32
        ),
        "notes": ContextConfig(policy="notes", notes_tokens=quarter // 2),
    }


@contextmanager
def small_window(model: Path, window: int) -> Iterator[Base]:
    """The model with a context of `window` tokens: what it is in a setting, nothing of its weights."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(model, Path(folder, "model")))
        write_json(copy / "config.json", read_json(copy / "config.json") | {"max_position_embeddings": window})
        yield load_base(copy)


def length_of(rollout: Rollout, chat: Chat) -> int:
    """Tokens of the whole session as it would stand in one context: prompt, messages, observations."""
    turns = rollout.trajectory.turns
    observed = sum(len(chat.ids(turn.observation)) for turn in turns)
    return len(rollout.trajectory.prompt_ids) + observed + sum(turn.completion_tokens for turn in turns)


def play(base: Base, adapter: Path | None, problems: Sequence[Problem], name: str, context: ContextConfig) -> Row:
    engine = SlotEngine.from_base(base, slots=64)
    engine.load_adapter(VERSION, adapter)
    jobs = jobs_for(problems, range(1), iteration=0, run_id=name, seed=0)
    chat, config = Chat(base.tokenizer), RolloutConfig(capacity=64, max_turn_tokens=64, context=context)
    with WarmPool(2, "agent") as pool, WarmPool(2, "verifier") as verifier:
        started = time.perf_counter()
        rollouts = run_sessions(
            jobs,
            engine,
            chat,
            open_session=lambda problem: open_session(problem, pool),
            policy_version=VERSION,
            sampling=Sampling(),
            config=config,
        )
        seconds = time.perf_counter() - started
        by_id = {problem.id: problem for problem in problems}
        judged = verify_all([rollout.trajectory for rollout in rollouts], by_id, verifier, RewardConfig())
    return Row(name, judged, [length_of(rollout, chat) for rollout in rollouts], seconds)


def show(rows: Sequence[Row], window: int) -> None:
    columns = ("policy", "success", "sampled tokens", "prefilled", "seconds", "median length", "longest", "violations")
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for row in rows:
        turns = [turn for trajectory in row.rollouts for turn in trajectory.turns]
        cells = (
            row.policy,
            f"{sum(bool(t.outcome) for t in row.rollouts)} of {len(row.rollouts)}",
            f"{sum(turn.completion_tokens for turn in turns):,}",
            f"{sum(turn.prompt_tokens - turn.cached_tokens for turn in turns):,}",
            f"{row.seconds:.0f}",
            f"{statistics.median(row.lengths) / window:.1f}",
            f"{max(row.lengths) / window:.1f}",
            str(sum(not turn.prompt_kept for turn in turns)),
        )
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "starter")
    parser.add_argument("--adapter", type=Path, help="a policy of a run: runs/<run>/policies/policy-00020")
    parser.add_argument("--horizon", choices=("short", "medium", "long"), default="long")
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--window", type=int, default=512, help="tokens of the model's context")
    given = parser.parse_args()
    problems = [
        problem.model_copy(update={"limits": problem.limits.model_copy(update={"turns": TURNS, "tokens": TOKENS})})
        for problem in generate(11, "heldout", given.horizon, given.problems)
    ]
    with small_window(given.model, given.window) as base:
        rows = [play(base, given.adapter, problems, *policy) for policy in policies(given.window).items()]
    show(rows, given.window)


if __name__ == "__main__":
    main()
