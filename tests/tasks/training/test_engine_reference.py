from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from data_contracts.records import Segment
from models.policy import Base, adapter_state, trainable_policy
from tasks.training import distributed
from tasks.training.config import TrainingConfig
from tasks.training.engine import TrainingEngine
from tasks.training.learner import Batch, Tally, score, train
from tasks.training.scores import Score

CONFIG = TrainingConfig(
    learning_rate=1e-2, warmup_steps=0, minibatches=1, micro_batch_tokens=100_000, mismatch="none", grad_clip=0.5
)


@pytest.fixture(autouse=True)
def _process_group() -> None:
    distributed.start_process_group()


def _ones(segments: Sequence[Segment]) -> list[list[float]]:
    return [[1.0] * sum(segment.loss_mask) for segment in segments]


def _weights_after(base: Base, adapter: Path, segments: list[Segment], config: TrainingConfig, steps: int = 2):
    engine = TrainingEngine(base, adapter, config)
    scores = score(engine, segments)
    tallies: list[Tally] = [train(engine, Batch(segments, scores, _ones(segments)), step) for step in range(steps)]
    state = engine._adapter_state()
    engine.close()
    return state, tallies, scores


def _reference(base: Base, adapter: Path, segments: list[Segment], scores: list[Score], steps: int = 2):
    """The same steps in plain PyTorch, one segment at a time, without packing, chunks or DeepSpeed."""
    policy = trainable_policy(base, adapter)
    parameters = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.0)
    tokens = sum(sum(segment.loss_mask) for segment in segments)
    losses, norms = [], []
    for _ in range(steps):
        loss = torch.zeros((), dtype=torch.float64)
        for segment, one in zip(segments, scores, strict=True):
            ids = torch.tensor([segment.token_ids])
            logprobs = policy(input_ids=ids).logits[0].double().log_softmax(-1)
            at = [t for t, m in enumerate(segment.loss_mask) if m]
            for t, old in zip(at, one.logprobs, strict=True):
                ratio = (logprobs[t - 1, segment.token_ids[t]] - old).exp()
                advantage = segment.advantages[t]
                loss = loss - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage) / tokens
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, 0.5)))
        losses.append(float(loss))
        optimizer.step()
    return adapter_state(policy), losses, norms


def _difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_steps_equal_plain_pytorch_and_do_not_depend_on_micro_batches(
    base: Base, policy_zero: Path, sample_segments
) -> None:
    segments = sample_segments(9)
    whole, tallies, scores = _weights_after(base, policy_zero, segments, CONFIG)
    uneven, uneven_tallies, _ = _weights_after(
        base, policy_zero, segments, CONFIG.model_copy(update={"micro_batch_tokens": 70})
    )
    expected, losses, norms = _reference(base, policy_zero, segments, scores)
    start = adapter_state(trainable_policy(base, policy_zero))
    assert _difference(expected, start) > 5e-3
    assert _difference(whole, expected) < 1e-6
    assert _difference(uneven, whole) < 1e-6
    assert [t.loss for t in tallies] == pytest.approx(losses, abs=1e-6)
    assert [t.norms[0] for t in tallies] == pytest.approx(norms, rel=1e-4)
    assert [t.loss for t in uneven_tallies] == pytest.approx(losses, abs=1e-6)
