"""bfloat16 weights over float32 optimizer state; layers computed again in the backward pass; steps that overflow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from models.policy import Base, init_whole, is_whole, load_base, merged_model
from tasks.training import distributed
from tasks.training.config import TrainingConfig
from tasks.training.engine import TrainingEngine
from tasks.training.learner import Batch, Tally, score, train
from tasks.training.packing import pack
from tasks.training.scores import Score

COMMON = {"warmup_steps": 0, "minibatches": 1, "mismatch": "none", "micro_batch_tokens": 60}


@pytest.fixture(autouse=True)
def _process_group() -> None:
    distributed.start_process_group()


def _engine(base: Base, policy: Path, **settings: object) -> TrainingEngine:
    config = TrainingConfig(**{**COMMON, **settings})
    return TrainingEngine(load_base(base.path), policy, config)


def _train(engine: TrainingEngine, segments, factor: float = 1.0) -> tuple[Tally, list[Score]]:
    scores = score(engine, segments)
    weights = [[factor] * sum(segment.loss_mask) for segment in segments]
    return train(engine, Batch(segments, scores, weights), 0), scores


@pytest.mark.parametrize("stage", [2, 3])
def test_bfloat16_takes_steps_that_are_smaller_than_its_own(
    base: Base, policy_moved: Path, sample_segments, tmp_path: Path, stage: int
) -> None:
    segments, moves, tallies, scores = sample_segments(5), [], [], []
    start = load_file(policy_moved / "adapter_model.safetensors")
    for precision in ("float32", "bfloat16"):
        settings = {"precision": precision, "zero_stage": stage, "learning_rate": 1e-4, "epochs": 20}
        engine = _engine(base, policy_moved, **settings)
        before = engine.state()
        tally, some = _train(engine, segments)
        tallies.append(tally)
        scores.append([p for one in some for p in one.logprobs])
        moves.append(torch.cat([(engine.state()[n].float() - before[n].float()).flatten() for n in sorted(before)]))
        if precision == "bfloat16":
            digest = engine.save(tmp_path / "policy-00002", tmp_path / "c")
            after = score(engine, segments)
        engine.close()
    errors = torch.tensor(scores[0]) - torch.tensor(scores[1])
    assert 1e-4 < float(errors.abs().mean()) < 0.1
    assert tallies[1].norms[0] == pytest.approx(tallies[0].norms[0], rel=0.05)
    # one step of 1e-4 is below half the distance of two bfloat16 numbers at 0.1 (5e-4 / 2): alone it would be lost
    assert float(torch.nn.functional.cosine_similarity(*moves, dim=0)) > 0.9
    assert float(moves[1].norm() / moves[0].norm()) == pytest.approx(1, abs=0.1)

    saved = load_file(tmp_path / "policy-00002" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.bfloat16}
    assert {tensor.dtype for tensor in start.values()} == {torch.float32}
    resumed = _engine(base, tmp_path / "policy-00002", precision="bfloat16", zero_stage=stage)
    resumed.load_checkpoint(tmp_path / "policy-00002", tmp_path / "c")
    assert resumed.digest == digest
    assert [one.logprobs for one in score(resumed, segments)] == [one.logprobs for one in after]
    resumed.close()


def test_a_bfloat16_step_that_is_not_finite_is_skipped(base: Base, policy_zero: Path, sample_segments) -> None:
    engine = _engine(base, policy_zero, precision="bfloat16")
    before = engine.state()
    tally, _ = _train(engine, sample_segments(3), factor=float("nan"))
    assert (tally.skipped, tally.norms) == (1, [])
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.state().items())
    tally, _ = _train(engine, sample_segments(3))
    assert (tally.skipped, len(tally.norms)) == (0, 1)
    engine.close()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_checkpointed_layers_are_computed_again_in_the_backward(
    base: Base, policy_zero: Path, sample_segments, checkpointing: bool
) -> None:
    engine = _engine(base, policy_zero, gradient_checkpointing=checkpointing)
    calls: list[str] = []
    for name, module in engine._scorer.named_modules():
        if name.endswith(".mlp"):
            module.register_forward_pre_hook(lambda *_, name=name: calls.append(name))
    packed = pack(sample_segments(2))
    with torch.no_grad():
        engine.compute(packed)
    assert len(calls) == 2, "without gradient nothing is computed twice"
    engine.accumulate(engine.compute(packed).logprobs.sum())
    assert len(calls) == (6 if checkpointing else 4)
    assert not any(module.training for module in engine._scorer.modules() if isinstance(module, torch.nn.Dropout))
    engine.step(1e-3)
    engine.close()


def test_a_whole_policy_is_served_as_it_was_trained(base: Base, sample_segments, tmp_path: Path) -> None:
    from models.fingerprint import probe_logprobs

    start = init_whole(base, tmp_path / "policy-00000")
    engine = _engine(base, start, weights="full", learning_rate=1e-3)
    segments = sample_segments(4)
    _train(engine, segments)
    digest = engine.save(tmp_path / "policy-00001", tmp_path / "c")
    after = score(engine, segments)
    engine.close()
    assert is_whole(tmp_path / "policy-00001")
    assert (tmp_path / "policy-00001" / "digest.txt").read_text().strip() == digest
    served = merged_model(base, tmp_path / "policy-00001")
    for segment, one in zip(segments, after, strict=True):
        logprobs = [0.0, *probe_logprobs(served, segment.token_ids)]
        assert one.logprobs == pytest.approx(
            [p for p, m in zip(logprobs, segment.loss_mask, strict=True) if m], abs=1e-5
        )
