"""The values of td credit: the probe's prediction at a turn's end is the value before the next turn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from data_contracts.records import Segment, Turn
from models.reward_model import Probe, extract
from tasks.credit.td import values_by


def test_values_stand_before_the_next_turn_and_the_end_has_none(make_trajectory):
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)).eval()
    turns = tuple(
        Turn(index=i, completion="", completion_tokens=1, prompt_tokens=1, finish_reason="stop", policy_digest="d")
        for i in range(3)
    )
    rollout = make_trajectory(outcome=True, turns=turns)
    # the second turn's end lies in another segment than the first's
    segments = [
        Segment(trajectory_id=rollout.id, index=0, token_ids=[1, 2, 3], loss_mask=[0, 1, 1],
                rollout_logprobs=[0, -1, -1], turn_index=[0, 0, 0]),
        Segment(trajectory_id=rollout.id, index=1, token_ids=[4, 5, 6, 7], loss_mask=[0, 1, 0, 1],
                rollout_logprobs=[0, -1, 0, -1], turn_index=[1, 1, 2, 2]),
    ]  # fmt: skip
    width = 2 * 16 + 3
    rng = np.random.default_rng(0)
    probe = Probe(
        mean=np.zeros(width), scale=np.ones(width), coefficients=rng.normal(size=width), intercept=0.1, slope=1.0,
        offset=0.0, knots_x=np.array([0.0, 1]), knots_y=np.array([0.1, 0.9]), directions=np.zeros((0, width)),
        spread=np.zeros(0), rest=1.0, limit=np.inf,
    )  # fmt: skip
    values = values_by(probe, model, [rollout], segments)
    predicted = probe.predict(extract(model, [rollout], segments).features)
    assert values == {rollout.id: {1: predicted[0], 2: predicted[1]}}
    assert values_by(replace(probe, limit=0.0), model, [rollout], segments) == {}, "what is abstained on is no value"
