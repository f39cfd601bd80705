from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from data_contracts.records import Segment
from models.policy import (
    Base,
    LoraSpec,
    adapter_state,
    init_adapter,
    load_base,
    trainable_policy,
    write_adapter,
)

VOCABULARY = 64
Sampler = Callable[..., list[Segment]]
Mover = Callable[[Base, Path, Path, float], Path]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """A random Qwen3 of 2 layers with a word tokenizer, saved and loaded."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=256, tie_word_embeddings=True,
        initializer_range=0.1,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w1", pad_token="w0").save_pretrained(folder)
    return load_base(folder)


@pytest.fixture(scope="session")
def policy_zero(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return init_adapter(base, LoraSpec(r=4, alpha=8), tmp_path_factory.mktemp("policies") / "policy-00000", seed=0)


@pytest.fixture(scope="session")
def moved() -> Mover:
    """Make an adapter that computes something else than its base: the adapter at `start` with noise on its weights."""

    def move(base: Base, start: Path, out: Path, noise: float) -> Path:
        import torch

        policy = trainable_policy(base, start)
        torch.manual_seed(1)
        state = {name: tensor + noise * torch.randn_like(tensor) for name, tensor in adapter_state(policy).items()}
        return write_adapter(state, policy.peft_config["default"], out)

    return move


@pytest.fixture(scope="session")
def policy_moved(base: Base, policy_zero: Path, moved: Mover, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return moved(base, policy_zero, tmp_path_factory.mktemp("policies") / "policy-00001", 0.2)


@pytest.fixture(scope="session")
def sample_segments(base: Base) -> Sampler:
    """Return segments whose log-probabilities are the base's own; two turns each, of uneven lengths."""
    from models.fingerprint import probe_logprobs

    def sample(count: int, seed: int = 0, *, signal: bool = True) -> list[Segment]:
        draw = random.Random(seed)
        segments = []
        for i in range(count):
            mask = [0] * draw.randint(3, 9) + [1] * draw.randint(2, 6) + [0] * draw.randint(1, 12)
            mask += [1] * draw.randint(1, 5) + [0] * draw.randint(0, 3)
            ids = [draw.randrange(VOCABULARY) for _ in mask]
            logprobs = [0.0, *probe_logprobs(base.model, ids)]
            advantage = draw.choice([-1.0, -0.5, 0.75, 1.0]) if signal else 0.0
            segments.append(
                Segment(
                    trajectory_id=f"r{i:03d}",
                    token_ids=ids,
                    loss_mask=mask,
                    rollout_logprobs=[p * m for p, m in zip(logprobs, mask, strict=True)],
                    turn_index=[0] * len(ids),
                    advantages=[advantage * m for m in mask],
                )
            )
        return segments

    return sample
