"""Routing of the rollouts replayed in training: exact under equal weights, close where the router has moved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from data_contracts.errors import UserError
from data_contracts.records import Segment
from models.policy import Base, LoraSpec, init_adapter, init_whole, load_base, write_whole
from tasks.rollout.engine import Completion, SampleRequest
from tasks.rollout.segments import SegmentWriter
from tasks.rollout.slot_engine import SlotEngine
from tasks.training import distributed
from tasks.training.config import TrainingConfig
from tasks.training.engine import TrainingEngine
from tasks.training.learner import Batch, _name_of, score, train
from tasks.training.packing import pack
from tasks.training.reports import MismatchReport
from tasks.training.scores import Score, mismatch

FULL = TrainingConfig(weights="full", minibatches=1, warmup_steps=0, learning_rate=1e-3, micro_batch_tokens=64)
NOISE = 0.02
"""Of the moved router's weights, whose own spread is 0.2."""


@pytest.fixture(autouse=True)
def _process_group() -> None:
    distributed.start_process_group()


@pytest.fixture(scope="module")
def moe(moe_folder: Path) -> Base:
    return load_base(moe_folder)


@pytest.fixture(scope="module")
def whole(moe: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return init_whole(moe, tmp_path_factory.mktemp("whole") / "policy-00000")


def sampled(base: Base, policy: Path, count: int = 6) -> list[Segment]:
    """Sessions of two turns by the slot engine, of uneven lengths, with tokens inserted between the turns."""
    engine, name = SlotEngine.from_base(base, slots=count), policy.name
    engine.load_adapter(name, policy)
    writers = {f"s{i}": SegmentWriter() for i in range(count)}
    contexts = {session: [(3 * i + 5 * j) % 90 for j in range(4 + 3 * i)] for i, session in enumerate(writers)}
    for turn in range(2):
        for i, (session, context) in enumerate(contexts.items()):
            writers[session].prompt(context, turn)
            engine.submit(SampleRequest(session, name, list(context), 6 + i, seed=i))
        done: dict[str, Completion] = {}
        while len(done) < count:
            done |= dict(engine.poll())
        for session, one in done.items():
            writers[session].sampled(one.token_ids, one.logprobs, turn, one.policy_version, one.routing)
            contexts[session] += [*one.token_ids, 7, 8 + turn]
    return [
        segment.model_copy(update={"advantages": [(-1.0) ** i * m for m in segment.loss_mask]})
        for i, writer in enumerate(writers.values())
        for segment in writer.build(f"r{i}")
    ]


@pytest.fixture(scope="module")
def segments(moe: Base, whole: Path) -> list[Segment]:
    return sampled(moe, whole)


@pytest.fixture(scope="module")
def nudged(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sampler's weights with a little noise on the routers alone."""
    model = load_base(whole).model
    torch.manual_seed(3)
    state = {
        name: value + NOISE * torch.randn_like(value) if name.endswith("mlp.gate.weight") else value.detach().clone()
        for name, value in model.named_parameters()
    }
    return write_whole(model, state, whole, tmp_path_factory.mktemp("nudged") / "policy-00000")


def scores_under(base: Base, policy: Path, segments: Sequence[Segment], config: TrainingConfig) -> list[Score]:
    engine = TrainingEngine(base, policy, config)
    scores = score(engine, segments)
    engine.close()
    return scores


def report(base: Base, policy: Path, segments: Sequence[Segment], **changes: object) -> MismatchReport:
    return mismatch(segments, scores_under(base, policy, segments, FULL.model_copy(update=changes)))


@pytest.mark.parametrize("packed", [True, False])
def test_under_equal_weights_replay_changes_nothing(moe, whole, segments, packed: bool) -> None:
    with_replay = report(moe, whole, segments, packed=packed)
    without = report(moe, whole, segments, packed=packed, replay_routing=False)
    assert with_replay.tokens == sum(2 * (6 + i) for i in range(6))
    assert with_replay.max_abs_diff < 1e-5
    assert without.max_abs_diff < 1e-5


def test_replay_takes_most_of_the_mismatch_of_a_moved_router(moe, nudged, segments) -> None:
    with_replay = report(moe, nudged, segments)
    without = report(moe, nudged, segments, replay_routing=False)
    print(f"mismatch with replay {with_replay.mean_abs_diff:.5f} {with_replay.max_abs_diff:.4f}")
    print(f"mismatch without     {without.mean_abs_diff:.5f} {without.max_abs_diff:.4f}")
    assert without.mean_abs_diff > 1e-3
    assert with_replay.mean_abs_diff < 0.4 * without.mean_abs_diff
    assert with_replay.max_abs_diff < 0.4 * without.max_abs_diff


def test_tokens_without_a_recording_take_the_routers_choice(moe, nudged, segments) -> None:
    bare = {"routed_experts": None, "experts": None, "experts_per_token": None}
    mixed = [one.model_copy(update=bare) if i % 2 else one for i, one in enumerate(segments)]
    replayed, live = (
        scores_under(moe, nudged, segments, FULL.model_copy(update={"replay_routing": on})) for on in (True, False)
    )
    for i, one in enumerate(scores_under(moe, nudged, mixed, FULL)):
        assert one.logprobs == pytest.approx((live if i % 2 else replayed)[i].logprobs, abs=1e-5)


def trained(base: Base, policy: Path, segments: Sequence[Segment], config: TrainingConfig) -> dict[str, torch.Tensor]:
    engine = TrainingEngine(base, policy, config)
    scores = score(engine, segments)
    ones = [[1.0] * len(one.logprobs) for one in scores]
    assert train(engine, Batch(segments, scores, ones), 0).skipped == 0
    state = engine.state()
    engine.close()
    return state


def test_a_step_trains_the_router_alike_with_replay_and_with_layers_computed_twice(moe, whole, segments) -> None:
    before = dict(load_base(whole).model.named_parameters())
    plain = trained(moe, whole, segments, FULL.model_copy(update={"replay_routing": False}))
    for changes in ({}, {"gradient_checkpointing": True}, {"packed": False}):
        state = trained(moe, whole, segments, FULL.model_copy(update=changes))
        assert max(float((state[name] - plain[name]).abs().max()) for name in plain) < 1e-5
    gates = [name for name in plain if name.endswith("mlp.gate.weight")]
    assert len(gates) == 2
    assert all(float((plain[name] - before[name]).abs().max()) > 1e-4 for name in gates)


def test_an_adapter_on_experts_trains_under_replay_and_samples_what_it_scores(moe, tmp_path: Path) -> None:
    zero = init_adapter(moe, LoraSpec(r=4, alpha=8), tmp_path / "policy-00000", seed=0)
    config = FULL.model_copy(update={"weights": "adapter", "learning_rate": 2e-2})
    engine = TrainingEngine(moe, zero, config)
    segments = sampled(moe, zero)
    scores = score(engine, segments)
    assert mismatch(segments, scores).max_abs_diff < 1e-5
    before = engine.state()
    train(engine, Batch(segments, scores, [[1.0] * len(one.logprobs) for one in scores]), 0)
    after, one = engine.state(), tmp_path / "policy-00001"
    engine.save(one, tmp_path / "checkpoints")
    engine.close()
    moved = [name for name in after if float((after[name] - before[name]).abs().max()) > 0]
    assert all(any(part in name for name in moved) for part in ("self_attn", "mlp.experts", "mlp.gate"))
    again = sampled(moe, one)
    assert [s.token_ids for s in again] != [s.token_ids for s in segments]
    assert report(moe, one, again, weights="adapter").max_abs_diff < 1e-4


def test_routing_of_another_model_is_refused(base, policy_zero, moe, whole, segments) -> None:
    adapter = FULL.model_copy(update={"weights": "adapter"})
    dense = [one.model_copy(update={"token_ids": [t % 64 for t in one.token_ids]}) for one in segments]
    with pytest.raises(UserError, match=r"2 layers, 2 experts a token.*not of this qwen3 \(0 layers.*replay_routing"):
        scores_under(base, policy_zero, dense, adapter)
    changed = {"routed_experts": [[*ids[:-1], 8] for ids in segments[0].routed_experts[:-1]] + [[]]}
    with pytest.raises(UserError, match="ids up to 8"):
        scores_under(moe, whole, [segments[0].model_copy(update=changed)], FULL)
    with pytest.raises(UserError, match="routed by different models"):
        pack([segments[0].model_copy(update={"experts_per_token": 1}), segments[1]])


def test_another_routing_is_another_iteration(segments) -> None:
    def name(batch: list[Segment]) -> str:
        return _name_of(Batch(batch, [], [[1.0]] * len(batch)), FULL, 0)

    rows = segments[0].routed_experts
    other = segments[0].model_copy(update={"routed_experts": [rows[0][::-1], *rows[1:]]})
    assert name(segments) == name([one.model_copy() for one in segments])
    assert name(segments) != name([other, *segments[1:]])
