from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from data_contracts.records import Segment, policy_name
from models.policy import Base, trainable_policy
from tasks.rollout.engine import Completion, SampleRequest
from tasks.rollout.segments import SegmentWriter
from tasks.rollout.slot_engine import SlotEngine
from tasks.training import distributed, learner
from tasks.training.config import TrainingConfig
from tasks.training.engine import TrainingEngine
from tasks.training.learner import Batch, Tally, base_scores, score, train, train_iteration
from tasks.training.reports import TrainReport
from tasks.training.scores import Score, mismatch

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
    state = engine.state()
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
        losses.append(loss.item())
        optimizer.step()
    return _trained(policy), losses, norms


def _trained(policy: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in policy.named_parameters() if p.requires_grad}


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
    start = _trained(trainable_policy(base, policy_zero))
    assert _difference(expected, start) > 5e-3
    assert _difference(whole, expected) < 1e-6
    assert _difference(uneven, whole) < 1e-6
    assert [t.loss for t in tallies] == pytest.approx(losses, abs=1e-6)
    assert [t.norms[0] for t in tallies] == pytest.approx(norms, rel=1e-4)
    assert [t.loss for t in uneven_tallies] == pytest.approx(losses, abs=1e-6)


def test_idle_segments_cost_nothing_and_stay_in_the_denominator(base: Base, policy_zero: Path, sample_segments) -> None:
    segments = sample_segments(6)
    for i in (1, 4):
        segments[i] = segments[i].model_copy(update={"advantages": [0.0] * len(segments[i].token_ids)})
    state, tallies, scores = _weights_after(base, policy_zero, segments, CONFIG, steps=1)
    expected, losses, _ = _reference(base, policy_zero, segments, scores, steps=1)
    assert _difference(state, expected) < 1e-6
    assert tallies[0].loss == pytest.approx(losses[0], abs=1e-6)


@pytest.mark.parametrize("objective", ["clip", "gspo", "dppo"])
def test_objectives_and_kl_to_the_base_equal_plain_pytorch_whatever_the_micro_batches(
    base: Base, policy_moved: Path, sample_segments, objective: str
) -> None:
    segments = sample_segments(6)
    segments[2] = segments[2].model_copy(update={"advantages": [0.0] * len(segments[2].token_ids)})
    config = CONFIG.model_copy(update={"objective": objective, "kl_coefficient": 0.1, "ratio_penalty": 0.05})
    states, losses = [], []
    for limit in (100_000, 70):
        engine = TrainingEngine(base, policy_moved, config.model_copy(update={"micro_batch_tokens": limit}))
        scores, under_base = score(engine, segments), base_scores(engine, segments)
        batch = Batch(segments, scores, _ones(segments), under_base)
        tallies = [train(engine, batch, step) for step in range(2)]
        states.append(engine.state())
        losses.append([tally.loss for tally in tallies])
        engine.close()
    at = [[t for t, m in enumerate(s.loss_mask) if m] for s in segments]
    for one, segment, positions in zip(under_base, segments, at, strict=True):
        assert one.logprobs == pytest.approx([segment.rollout_logprobs[t] for t in positions], abs=1e-5)
    state, expected = _with_kl(base, policy_moved, segments, scores, under_base, objective)
    assert losses[0] == pytest.approx(expected, abs=1e-5)
    assert losses[1] == pytest.approx(expected, abs=1e-5)
    assert _difference(states[0], state) < 1e-5
    assert _difference(states[1], states[0]) < 1e-5


def _with_kl(base: Base, adapter: Path, segments, scores, under_base, objective: str):
    """Two steps in plain PyTorch, a segment at a time, each objective spelled out."""
    policy = trainable_policy(base, adapter)
    parameters = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.0)
    tokens, losses = sum(sum(segment.loss_mask) for segment in segments), []
    for _ in range(2):
        loss = torch.zeros((), dtype=torch.float64)
        for segment, one, under in zip(segments, scores, under_base, strict=True):
            logits = policy(input_ids=torch.tensor([segment.token_ids])).logits[0].double().log_softmax(-1)
            at = [t for t, m in enumerate(segment.loss_mask) if m]
            new = torch.stack([logits[t - 1, segment.token_ids[t]] for t in at])
            old, away = torch.tensor(one.logprobs), torch.tensor(under.logprobs)
            advantage = segment.advantages[at[0]]
            log_ratio = new - old.double()
            ratio = log_ratio.exp()
            if objective == "gspo":
                ratio = log_ratio.mean().exp().expand_as(ratio)
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
            if objective == "dppo":
                moved = new.exp() - old.double().exp()
                free = (moved <= 0.28) if advantage > 0 else (moved >= -0.2)
                gain = free * ratio * advantage - 0.05 * log_ratio**2
            kl = (away - new).exp() - (away - new) - 1
            loss = loss + (0.1 * kl - gain).sum() / tokens
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        losses.append(loss.item())
        optimizer.step()
    return _trained(policy), losses


def test_importance_weights_reach_the_gradient(base: Base, policy_zero: Path, sample_segments) -> None:
    segments = sample_segments(3)
    config = CONFIG.model_copy(update={"grad_clip": 1e9})
    norms = []
    for factor in (1.0, 0.25):
        engine = TrainingEngine(base, policy_zero, config)
        scores = score(engine, segments)
        weights = [[factor * w for w in row] for row in _ones(segments)]
        norms.append(train(engine, Batch(segments, scores, weights), 0).norms[0])
        engine.close()
    assert norms[1] == pytest.approx(0.25 * norms[0], rel=1e-5)


def _sampled_by_the_engine(base: Base, adapter: Path, temperature: float) -> list[Segment]:
    """Sessions of three turns, with tokens inserted in between."""
    engine, name = SlotEngine.from_base(base, slots=5), adapter.name
    engine.load_adapter(name, adapter)
    writers = {f"s{i}": SegmentWriter() for i in range(5)}
    contexts = {session: [(3 * i + j) % 60 for j in range(4 + 2 * i)] for i, session in enumerate(writers)}
    for turn in range(3):
        for i, (session, context) in enumerate(contexts.items()):
            writers[session].prompt(context, turn)
            engine.submit(SampleRequest(session, name, list(context), 4 + i, temperature=temperature, seed=i))
        done: dict[str, Completion] = {}
        while len(done) < len(writers):
            done |= dict(engine.poll())
        for session, completion in done.items():
            writers[session].sampled(completion.token_ids, completion.logprobs, turn, completion.policy_version)
            contexts[session] += [*completion.token_ids, 7, 8 + turn]
    return [segment for session, writer in writers.items() for segment in writer.build(session)]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_ratios_of_what_the_engine_sampled_are_one_under_its_temperature_alone(
    base: Base, policy_moved: Path, temperature: float
) -> None:
    segments = _sampled_by_the_engine(base, policy_moved, temperature)
    reports = []
    for heat in (temperature, 1.3 * temperature):
        engine = TrainingEngine(base, policy_moved, CONFIG.model_copy(update={"temperature": heat}))
        reports.append(mismatch(segments, score(engine, segments)))
        engine.close()
    assert reports[0].tokens == 3 * sum(range(4, 9))
    assert reports[0].max_abs_diff < 1e-4
    assert reports[1].max_abs_diff > 0.05


def test_a_resume_at_the_boundary_of_epochs_or_within_one_trains_the_same_samples(
    base: Base, policy_zero: Path, sample_segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CONFIG.model_copy(update={"epochs": 2, "minibatches": 2})
    batches = [sample_segments(6, seed=seed) for seed in range(2)]
    trained: list[list[str]] = []
    deal = learner.minibatches

    def noted(segments: list[Segment], count: int, **key: int) -> list[list[int]]:
        parts = deal(segments, count, **key)
        trained.append([f"{key['iteration']}/{key['epoch']}/{segments[i].trajectory_id}" for p in parts for i in p])
        return parts

    class Killed(BaseException):
        pass

    def iteration(folder: Path, number: int, *, steps_before_kill: int | None = None) -> TrainReport:
        start = folder / policy_name(number) if number else policy_zero
        engine = TrainingEngine(base, start, config)
        if number:
            engine.load_checkpoint(start, folder / f"c{number}")
        left, step = iter(range(steps_before_kill or 99)), engine.step

        def dying(rate: float) -> float | None:
            if next(left, None) is None:
                raise Killed
            return step(rate)

        monkeypatch.setattr(engine, "step", dying)
        try:
            return train_iteration(
                engine, batches[number], score(engine, batches[number]), step=number,
                out_policy_dir=folder / policy_name(number + 1), checkpoint_dir=folder / f"c{number + 1}",
            )  # fmt: skip
        finally:
            engine.close()

    monkeypatch.setattr(learner, "minibatches", noted)
    whole = [iteration(tmp_path / "whole", number) for number in range(2)]
    ids, trained[:] = list(trained), []
    iteration(tmp_path / "broken", 0)
    with pytest.raises(Killed):
        iteration(tmp_path / "broken", 1, steps_before_kill=3)  # in the middle of the second epoch
    assert len(trained) == 4
    again = iteration(tmp_path / "broken", 1)
    assert [report.steps for report in whole] == [4, 4]
    assert again.steps == 4, "a resume at an epoch boundary must not end with nothing done"
    assert [*trained[:2], *trained[4:]] == ids
    assert len(set(itertools.chain(*ids))) == 2 * 2 * 6
    assert again.digest == whole[1].digest


def test_the_learning_rate_warms_up_over_iterations() -> None:
    config = TrainingConfig(learning_rate=4e-4, warmup_steps=4)
    assert [config.learning_rate_at(step) for step in range(6)] == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4, 4e-4, 4e-4])
    assert TrainingConfig(warmup_steps=0).learning_rate_at(0) == TrainingConfig().learning_rate


def test_fused_layers_compute_what_peft_computes(base: Base, policy_zero: Path, sample_segments) -> None:
    from tasks.training.fused import fuse_lora

    torch.manual_seed(0)
    policies = [trainable_policy(base, policy_zero) for _ in range(2)]
    for (name, one), (_, other) in zip(*(p.named_parameters() for p in policies), strict=True):
        if "lora_" in name:
            one.data.normal_(std=0.1)
            other.data.copy_(one.data)
    assert fuse_lora(policies[0]) == 14
    ids = torch.tensor([sample_segments(1)[0].token_ids])
    for policy in policies:
        policy(input_ids=ids).logits.square().sum().backward()
    for (name, one), (_, other) in zip(*(p.named_parameters() for p in policies), strict=True):
        if "lora_" in name:
            assert one.grad.abs().max() > 0
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4 * float(other.grad.abs().max()))


@pytest.mark.parametrize("death", range(4))
def test_a_kill_while_saving_leaves_the_previous_or_the_next(
    base: Base, policy_zero: Path, sample_segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: int
) -> None:
    class Killed(BaseException):
        pass

    import os

    renames = {"left": death}
    rename = os.rename

    def dying(source: Path, target: Path) -> None:
        if renames["left"] == 0:
            raise Killed
        renames["left"] -= 1
        rename(source, target)

    segments = sample_segments(3)
    policy, checkpoints = tmp_path / "policy-00001", tmp_path / "checkpoint"

    def attempt() -> str:
        engine = TrainingEngine(base, policy_zero, CONFIG)
        scores = score(engine, segments)
        train(engine, Batch(segments, scores, _ones(segments)), 0)
        try:
            return engine.save(policy, checkpoints)
        finally:
            engine.close()

    with monkeypatch.context() as patch:
        patch.setattr("models.policy.os.rename", dying)
        if death < 3:
            with pytest.raises(Killed):
                attempt()
        else:
            attempt()
    assert policy.exists() == (death == 3)
    digest = attempt() if death < 3 else (policy / "digest.txt").read_text().strip()
    resumed = TrainingEngine(base, policy, CONFIG)
    resumed.load_checkpoint(policy, checkpoints)
    assert digest == (policy / "digest.txt").read_text().strip()
    resumed.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint", "policy-00001"]
    assert [p.name for p in checkpoints.iterdir()] == ["policy-00001"]
