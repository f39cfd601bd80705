"""Is the trainer the sampler? Three lemmas: exact where they hold, within a measured bound where they do not.

1. The trainer's log-probabilities of a segment do not depend on its batch: bit-equal with `batch_invariant`.
2. The trainer's forward over a whole segment equals the engine's over the same context (prefill).
3. The engine's tokens one at a time (decode) equal its forward over the whole (prefill).

Float32 on a CPU multiplies matrices of other shapes in another order, so 2 and 3 hold to rounding, not to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from data_contracts.records import Segment
from models.policy import Base, LoraSpec, init_adapter, load_base
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

VERSION = "policy-00000"
ROUNDING = 2e-5
"""Nats; the largest difference seen of the starter model is 4e-6 for most batches, its sums have hundreds of terms."""


@pytest.fixture(scope="module")
def starter() -> Base:
    return load_base(Path(__file__).parents[3] / "models" / "starter")


@pytest.fixture(scope="module")
def sampled(starter: Base) -> tuple[SlotEngine, list[Segment]]:
    """Sessions of the starter as the in-process engine sampled them, many at a time."""
    from data_contracts.records import Sampling
    from models.chat import Chat

    engine = SlotEngine.from_base(starter, slots=16)
    engine.load_adapter(VERSION, None)
    with WarmPool(1, "agent") as pool:
        rollouts = run_sessions(
            jobs_for(generate(3, "train", "short", 4), range(4), iteration=0, run_id="lemmas", seed=0),
            engine,
            Chat(starter.tokenizer),
            open_session=lambda problem: open_session(problem, pool),
            policy_version=VERSION,
            sampling=Sampling(),
            config=RolloutConfig(capacity=16),
        )
    return engine, [segment for rollout in rollouts for segment in rollout.segments]


@pytest.fixture(scope="module")
def policy(starter: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return init_adapter(starter, LoraSpec(r=4, alpha=8), tmp_path_factory.mktemp("policies") / VERSION, seed=0)


@pytest.fixture(scope="module")
def trainer(starter: Base, policy: Path) -> Iterator[TrainingEngine]:
    distributed.start_process_group()
    engine = TrainingEngine(starter, policy, TrainingConfig(batch_invariant=True, lora_r=4, lora_alpha=8))
    yield engine
    engine.close()


def test_the_trainer_gives_a_segment_the_same_bits_in_any_company(
    trainer: TrainingEngine, sampled: tuple[SlotEngine, list[Segment]]
) -> None:
    _, segments = sampled
    together = score(trainer, segments)
    assert score(trainer, segments[::-1])[::-1] == together
    assert [score(trainer, [segment])[0] for segment in segments[:5]] == together[:5]


def test_the_trainer_is_the_engines_prefill_and_that_is_its_decode(
    trainer: TrainingEngine, sampled: tuple[SlotEngine, list[Segment]]
) -> None:
    engine, segments = sampled
    second, third = [], []
    for segment, one in zip(segments, score(trainer, segments), strict=True):
        at = [t for t, mask in enumerate(segment.loss_mask) if mask]
        prefill = [0.0, *engine.teacher_force(VERSION, segment.token_ids)]
        second += [abs(one.logprobs[k] - prefill[t]) for k, t in enumerate(at)]
        third += [abs(segment.rollout_logprobs[t] - prefill[t]) for t in at]
    assert len(second) > 200
    assert max(second) < ROUNDING
    assert max(third) < ROUNDING
