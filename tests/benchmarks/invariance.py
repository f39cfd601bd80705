"""What bit-equal log-probabilities cost, and how near trainer and engine are without them.

    python tests/benchmarks/invariance.py [--problems N] [--repeats N]

Sessions of the starter, as the in-process engine sampled them, are scored by the trainer in micro-batches and, with
`training.batch_invariant`, each segment alone. Prints the largest |difference| of a sampled token between them, to the
engine's forward over the whole (prefill) and to what it sampled token by token (decode), and the ratio of the times.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from data_contracts.records import Sampling, Segment
from models.chat import Chat
from models.policy import LoraSpec, init_adapter, load_base
from tasks.curriculum.generator import generate
from tasks.rollout.config import RolloutConfig
from tasks.rollout.environments import open_session
from tasks.rollout.jobs import jobs_for
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.scheduler import run_sessions
from tasks.rollout.slot_engine import SlotEngine
from tasks.training import distributed
from tasks.training.config import TrainingConfig
from tasks.training.engine import TrainingEngine
from tasks.training.learner import score

ROOT = Path(__file__).parents[2]
VERSION = "policy-00000"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    base = load_base(ROOT / "models" / "starter")
    distributed.start_process_group()
    sampler = SlotEngine.from_base(base, slots=128)
    sampler.load_adapter(VERSION, None)
    with WarmPool(2, "agent") as pool, tempfile.TemporaryDirectory() as folder:
        rollouts = run_sessions(
            jobs_for(generate(3, "train", "short", given.problems), range(8), iteration=0, run_id="b", seed=0),
            sampler,
            Chat(base.tokenizer),
            open_session=lambda problem: open_session(problem, pool),
            policy_version=VERSION,
            sampling=Sampling(),
            config=RolloutConfig(),
        )
        segments = [segment for rollout in rollouts for segment in rollout.segments]
        policy = init_adapter(base, LoraSpec(r=16, alpha=32), Path(folder) / VERSION, seed=0)
        engines = {
            invariant: TrainingEngine(base, policy, TrainingConfig(batch_invariant=invariant))
            for invariant in (False, True)
        }
        ratios = []
        for _ in range(given.repeats):
            (batched, quick), (alone, slow) = timed(engines[False], segments), timed(engines[True], segments)
            ratios.append(slow / quick)
    decode = [[segment.rollout_logprobs[t] for t in places(segment)] for segment in segments]
    prefill = [forced(sampler, segment) for segment in segments]
    print("| against the trainer, each segment alone | largest difference, nats |\n|---|---|")
    for name, other in (
        ("trainer in micro-batches", batched),
        ("engine, whole", prefill),
        ("engine, by token", decode),
    ):
        print(f"| {name} | {largest(alone, other):.1e} |")
    print(f"scoring each segment alone takes {statistics.median(ratios):.2f} times as long ({len(segments)} segments)")


def timed(engine: TrainingEngine, segments: Sequence[Segment]) -> tuple[list[list[float]], float]:
    started = time.perf_counter()
    found = score(engine, segments)
    return [one.logprobs for one in found], time.perf_counter() - started


def places(segment: Segment) -> list[int]:
    return [t for t, mask in enumerate(segment.loss_mask) if mask]


def forced(engine: SlotEngine, segment: Segment) -> list[float]:
    whole = [0.0, *engine.teacher_force(VERSION, segment.token_ids)]
    return [whole[t] for t in places(segment)]


def largest(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    return max(abs(a - b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


if __name__ == "__main__":
    main()
