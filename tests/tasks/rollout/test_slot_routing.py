"""Every token's experts as the engine routed it, whatever batch or turn that was in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from data_contracts.store import frame_of
from data_contracts.validate import validate
from models.policy import Base, load_base
from tasks.rollout.engine import Completion, Routing, SampleRequest
from tasks.rollout.segments import SegmentWriter
from tasks.rollout.slot_engine import SlotEngine

VERSION = "policy-00000"


@pytest.fixture(scope="module")
def moe(moe_folder: Path) -> Base:
    return load_base(moe_folder)


@pytest.fixture(scope="module")
def engine(moe: Base) -> SlotEngine:
    engine = SlotEngine.from_base(moe, slots=5)
    engine.load_adapter(VERSION, None)
    return engine


def sample(engine: SlotEngine, contexts: dict[str, list[int]], tokens: int = 5) -> dict[str, Completion]:
    for number, (session, ids) in enumerate(contexts.items()):
        engine.submit(SampleRequest(session, VERSION, list(ids), tokens + number, seed=number))
    done: dict[str, Completion] = {}
    for _ in range(tokens + len(contexts)):
        done |= dict(engine.poll())
    assert len(done) == len(contexts)
    return done


@torch.no_grad()
def plain_routes(moe: Base, ids: list[int]) -> np.ndarray:
    """The experts [T, layers, 2] of a plain forward, from the router logits that transformers gives out."""
    logits = moe.model(torch.tensor([ids]), output_router_logits=True).router_logits
    return torch.stack([layer.topk(2, dim=-1).indices for layer in logits], dim=1).numpy()


def test_recorded_experts_are_those_of_a_plain_forward_over_turns_and_sessions(moe: Base, engine: SlotEngine) -> None:
    contexts = {f"s{i}": [(7 * i + 3 * j) % 90 for j in range(4 + 5 * i)] for i in range(5)}
    for _ in range(3):
        done = sample(engine, contexts)
        for session, completion in done.items():
            ids = [*contexts[session], *completion.token_ids]
            assert completion.routing is not None and completion.routing.experts == 8
            np.testing.assert_array_equal(completion.routing.chosen, plain_routes(moe, ids[:-1]))
            contexts[session] = [*ids, 7, 8]
    for session in contexts:
        engine.close_session(session)


def test_rollouts_of_one_prompt_share_its_routing_and_part_after_it(moe: Base, engine: SlotEngine) -> None:
    contexts = {f"g{i}": [5, 9, 2, 40, 11] for i in range(3)}
    done = sample(engine, contexts, tokens=6)
    for session, completion in done.items():
        ids = [*contexts[session], *completion.token_ids]
        assert completion.routing is not None
        np.testing.assert_array_equal(completion.routing.chosen, plain_routes(moe, ids[:-1]))
        engine.close_session(session)
    assert len({tuple(completion.token_ids[:6]) for completion in done.values()}) == 3


def test_a_rewritten_context_is_recorded_anew(moe: Base, engine: SlotEngine) -> None:
    first = sample(engine, {"r": [4, 5, 6, 7, 8]})["r"]
    rewritten = [4, 5, 60, 61]
    again = sample(engine, {"r": rewritten})["r"]
    engine.close_session("r")
    assert first.routing is not None and again.routing is not None
    np.testing.assert_array_equal(again.routing.chosen, plain_routes(moe, [*rewritten, *again.token_ids][:-1]))


def test_segments_carry_the_routing_and_pass_their_contract(engine: SlotEngine) -> None:
    writer, context = SegmentWriter(), [1, 2, 3, 4]
    for turn in range(2):
        writer.prompt(context, turn)
        one = sample(engine, {"w": context})["w"]
        writer.sampled(one.token_ids, one.logprobs, turn, one.policy_version, one.routing)
        context = [*context, *one.token_ids, 9]
    engine.close_session("w")
    (segment,) = writer.build("w")
    assert (segment.experts, segment.experts_per_token) == (8, 2)
    assert segment.routed_experts is not None and one.routing is not None
    assert segment.routed_experts == [*one.routing.chosen.reshape(-1, 4).tolist(), []]
    assert validate("segments", frame_of("segments", [segment])).rejected == []


def test_a_token_that_is_routed_twice_keeps_the_first() -> None:
    writer = SegmentWriter()
    writer.prompt([1, 2], 0)
    writer.sampled([3], [-0.5], 0, VERSION, Routing(np.array([[[0, 1]], [[2, 3]]]), 4))
    writer.prompt([1, 2, 3], 1)
    writer.sampled([4], [-0.5], 1, VERSION, Routing(np.array([[[3, 2]], [[3, 2]], [[1, 0]]]), 4))
    (segment,) = writer.build("r")
    assert segment.routed_experts == [[0, 1], [2, 3], [1, 0], []]


def test_a_routing_of_another_length_is_refused() -> None:
    writer = SegmentWriter()
    writer.prompt([1, 2], 0)
    with pytest.raises(ValueError, match="1 tokens have recorded experts, 2 were read"):
        writer.sampled([3], [-0.5], 0, VERSION, Routing(np.array([[[0, 1]]]), 4))


def test_the_completions_of_a_dense_model_have_no_routing(make_engine: Callable[..., SlotEngine]) -> None:
    assert sample(make_engine(), {"d": [1, 2, 3]})["d"].routing is None
