"""The starter model: a tokenizer and a small Qwen3 of our own, warmed up on demonstrations.

demonstrations -> byte-level BPE -> skilled stage (with a copy loss) -> careless stage -> model folder

Identifier copying is the first bottleneck of so small a model: an auxiliary loss on repeated random token strings
teaches it (induction heads). The careless stage leaves room for reinforcement learning to improve on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from data_contracts.config import Config
from models.chat import Chat
from models.muon import Muon

END, START = "<|im_end|>", "<|im_start|>"
SPECIAL = ("<|endoftext|>", START, END)
PIECES = (
    START + "user\n", START + "assistant\n", START + "system\n", "<tool_response>\n", "\n</tool_response>",
    '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "test", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "edit", "arguments": {"line": ', ', "text": "', '"}}\n</tool_call>',
    "<tool_call>", "</tool_call>", "<think>", "</think>",
)  # fmt: skip
"""Strings of the chat form that are one token each, so that a tool call costs few."""

TEMPLATE = (
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
    "{%- else %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    '{%- for c in m.tool_calls or [] %}{{ \'<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}"
    "{{ '}\n</tool_call>' }}{%- endfor %}{{ '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)


class StarterConfig(Config):
    """Sizes and rates of the starter model."""

    vocabulary: int = 768
    hidden: int = 128
    layers: int = 4
    mlp: int = 256
    heads: int = 4
    kv_heads: int = 2
    initial_std: float = 0.05
    batch_tokens: int = 4096
    copy_share: float = 0.15
    observed_weight: float = 0.3
    skilled_rate: float = 5e-3
    careless_rate: float = 6e-4
    seed: int = 0


class DemonstrationLike(Protocol):
    """What the warm-up needs of a demonstration."""

    @property
    def messages(self) -> list[dict[str, Any]]: ...

    @property
    def tools(self) -> list[dict[str, Any]]: ...

    @property
    def steps(self) -> Sequence[Any]: ...


class Example(NamedTuple):
    """Token ids and the weight of each in the loss, both [T]."""

    ids: list[int]
    weights: list[float]


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE in which digits stand alone and no merge crosses a word, with the chat form's pieces added."""
    tokenizer = Tokenizer(models.BPE())
    split = Regex(r"\d| ?[A-Za-z]+| {4,}| ?[^\sA-Za-z\d]+|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(split, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(PIECES),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(piece, normalized=False, special=False) for piece in PIECES])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token="<|endoftext|>")
    fast.add_special_tokens({"additional_special_tokens": [START]})
    fast.chat_template = TEMPLATE
    return fast


def encode(demonstration: DemonstrationLike, chat: Chat, observed_weight: float = 0.0) -> Example:
    """A demonstration as the rollouts would have produced it: the same ids, weight 1 on what a trained step says.

    `observed_weight` is that of observations: predicting the code that a docstring asks for teaches what repair needs.
    """
    ids = chat.prompt(demonstration.messages, demonstration.tools)
    weights = [0.0] * len(ids)
    for step in demonstration.steps:
        completion = chat.completion(step.text)
        ids += completion
        weights += [float(step.trained)] * len(completion)
        if step.observation:
            observed = chat.observation([step.observation], closed=True)
            ids += observed
            weights += [observed_weight] * len(observed)
    return Example(ids, weights)


def new_model(config: StarterConfig, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A Qwen3-architecture model with random weights."""
    torch.manual_seed(config.seed)
    shape = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden,
        intermediate_size=config.mlp,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.hidden // config.heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=config.initial_std,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(shape).float()


def warm_up(
    model: Qwen3ForCausalLM,
    examples: Sequence[Example],
    config: StarterConfig,
    *,
    rate: float,
    copy_share: float,
    on_step: Callable[[int, int, float], None] | None = None,
) -> None:
    """One pass of supervised training over the examples, cosine rate, with the copy loss mixed in."""
    rng = np.random.default_rng(config.seed)
    batches = _batches(examples, config.batch_tokens, rng)
    optimizers = _optimizers(model, rate)
    warm = min(50, len(batches) // 10 + 1)
    scales = [
        torch.optim.lr_scheduler.LambdaLR(
            one, lambda s: min(1.0, (s + 1) / warm) * (0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * s / len(batches))))
        )
        for one in optimizers
    ]
    model.train()
    for step, batch in enumerate(batches):
        loss = _weighted_loss(model, batch)
        if copy_share:
            loss = loss + copy_share * _copy_loss(model, rng)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, scale in zip(optimizers, scales, strict=True):
            optimizer.step()
            scale.step()
        model.zero_grad(set_to_none=True)
        if on_step:
            on_step(step + 1, len(batches), float(loss.detach()))
    model.eval()


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """The model folder, weights in half precision."""
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model.float()


def _optimizers(model: Qwen3ForCausalLM, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, which in the same time learn twice as much as under AdamW; AdamW for the rest."""
    layers = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    chosen = {id(p) for p in layers}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [Muon(layers, rate), torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.99), weight_decay=0.01)]


def _batches(examples: Sequence[Example], batch_tokens: int, rng: np.random.Generator) -> list[list[Example]]:
    """Examples of like length together, at most `batch_tokens` padded tokens each, in random order."""
    jitter = rng.uniform(0.9, 1.1, len(examples))
    order = sorted(range(len(examples)), key=lambda i: len(examples[i].ids) * jitter[i])
    batches: list[list[Example]] = [[]]
    longest = 0
    for i in order:
        longest = max(longest, len(examples[i].ids))
        if batches[-1] and longest * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
            longest = len(examples[i].ids)
        batches[-1].append(examples[i])
    rng.shuffle(batches)
    return batches


def _weighted_loss(model: Qwen3ForCausalLM, batch: list[Example]) -> torch.Tensor:
    length = max(len(e.ids) for e in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    weights = torch.zeros(len(batch), length)
    for row, example in enumerate(batch):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        weights[row, : len(example.ids)] = torch.tensor(example.weights)
    kept = weights[:, 1:] > 0
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1][kept]
    losses = torch.nn.functional.cross_entropy(model.lm_head(hidden), ids[:, 1:][kept], reduction="none")
    return (losses * weights[:, 1:][kept]).sum() / weights[:, 1:].sum()


def _copy_loss(model: Qwen3ForCausalLM, rng: np.random.Generator, rows: int = 8, length: int = 48) -> torch.Tensor:
    """Cross-entropy on the second half of repeated random strings."""
    half = torch.from_numpy(rng.integers(3, model.config.vocab_size, (rows, length)))
    ids = torch.cat([half, half], dim=1)
    hidden = model.model(input_ids=ids).last_hidden_state[:, length:-1]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden).flatten(0, 1), ids[:, length + 1 :].flatten())
