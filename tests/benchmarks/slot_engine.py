"""Sampled tokens per second of the slot engine against transformers `generate`, on the same multi-turn sessions.

    python tests/benchmarks/slot_engine.py [--sessions 128] [--turns 4] [--tokens 12] [--threads 2] [--batch 128]

Both sample every turn of every session at temperature 1, to the same lengths; contexts grow to about 300 tokens.
`generate` gets whole batches and prefills the context again at each turn; it gives no log-probabilities.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tasks.rollout.engine import SampleRequest
from tasks.rollout.slot_engine import SlotEngine

PROMPT, OBSERVATION = 180, 24
GROUP = 8


def model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=768, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, intermediate_size=256, tie_word_embeddings=True, max_position_embeddings=1024,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def prompts(sessions: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    groups = [rng.integers(9, 768, PROMPT + int(rng.integers(-20, 20))).tolist() for _ in range(-(-sessions // GROUP))]
    return [groups[i // GROUP] for i in range(sessions)]


def lengths(sessions: int, turns: int, tokens: int) -> np.ndarray:
    """Tokens each turn samples: uneven, as real turns are."""
    return np.random.default_rng(1).integers(tokens // 2, tokens + tokens // 2 + 1, (sessions, turns))


def observation(turn: int) -> list[int]:
    return [10 + (turn * 7 + i) % 700 for i in range(OBSERVATION)]


def by_slots(sessions: int, turns: int, plan: np.ndarray) -> tuple[int, float, float, float]:
    """Tokens sampled, seconds, CPU seconds, and the share of the context that was read again from the slots."""
    engine = SlotEngine(lambda path: model(), lambda path: "digest", slots=sessions)
    engine.load_adapter("policy-00000", Path("."))
    contexts, turn = prompts(sessions), [0] * sessions
    sampled = cached = context = 0
    start, cpu = time.perf_counter(), time.process_time()

    def ask(i: int) -> None:
        engine.submit(SampleRequest(str(i), "policy-00000", list(contexts[i]), int(plan[i, turn[i]]), seed=i))

    for i in range(sessions):
        ask(i)
    running = sessions
    while running:
        for name, completion in engine.poll():
            i = int(name)
            sampled, cached = sampled + len(completion.token_ids), cached + completion.cached_tokens
            context += completion.prompt_tokens
            contexts[i] = contexts[i] + completion.token_ids + observation(turn[i])
            turn[i] += 1
            if turn[i] < turns:
                ask(i)
            else:
                running -= 1
                engine.close_session(name)
    return sampled, time.perf_counter() - start, time.process_time() - cpu, cached / context


@torch.inference_mode()
def by_generate(sessions: int, turns: int, tokens: int, batch: int) -> tuple[int, float, float]:
    """Tokens sampled, seconds, CPU seconds."""
    lm, contexts, sampled = model(), [list(prompt) for prompt in prompts(sessions)], 0
    start, cpu = time.perf_counter(), time.process_time()
    for turn in range(turns):
        for first in range(0, sessions, batch):
            rows = contexts[first : first + batch]
            width = max(map(len, rows))
            ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
            out = lm.generate(
                ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=tokens, min_new_tokens=tokens,
                pad_token_id=0, eos_token_id=None,
            )  # fmt: skip
            for row, new in zip(rows, out[:, width:].tolist(), strict=True):
                row += new + observation(turn)
                sampled += len(new)
    return sampled, time.perf_counter() - start, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("sessions", 128), ("turns", 4), ("tokens", 12), ("threads", 2), ("batch", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plan = lengths(options.sessions, options.turns, options.tokens)
    sampled, seconds, cpu, share = by_slots(options.sessions, options.turns, plan)
    print(f"slot engine: {_line(sampled, seconds, cpu)}, {share:.0%} of contexts cached")
    other, other_seconds, other_cpu = by_generate(options.sessions, options.turns, options.tokens, options.batch)
    print(f"generate:    {_line(other, other_seconds, other_cpu)}")
    ratio, cpu_ratio = (sampled / seconds) / (other / other_seconds), (sampled / cpu) / (other / other_cpu)
    print(f"ratio: {ratio:.2f} by the clock, {cpu_ratio:.2f} by CPU time")


def _line(tokens: int, seconds: float, cpu: float) -> str:
    return f"{tokens} tokens in {seconds:.2f} s, {tokens / seconds:.0f}/s; CPU {cpu:.2f} s"


if __name__ == "__main__":
    main()
