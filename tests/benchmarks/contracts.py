"""Validation of many rollouts: both tables, every row, every rule, and the expectations on the whole.

    python tests/benchmarks/contracts.py [--trajectories 100000] [--tokens 200] [--run-seconds-per-rollout 0.223]

Makes valid trajectories of three turns with one segment of `--tokens` tokens each (100,000 of 200 are 20 million), and
validates them in batches of `--batch` as a run does, from frames as they are read from Parquet. Prints the seconds, and
the share of a run's wall time when a rollout takes `--run-seconds-per-rollout` of it (the quick start on two cores:
9.5 minutes for 20 iterations of 128).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa

from data_contracts.contract import load_contract
from data_contracts.store import frame_of_arrow
from data_contracts.validate import expect, validate_rollouts

PROMPT, TURNS = 20, 3


def batch(first: int, rows: int, tokens: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rollouts numbered from `first`, as frames."""
    each = (tokens - PROMPT) // TURNS
    observed = each // 3
    mask = np.zeros(tokens, dtype=np.int8)
    turn_index = np.full(tokens, TURNS - 1, dtype=np.int32)
    turns = []
    for index in range(TURNS):
        start = PROMPT + index * each + (observed if index else 0)
        end = PROMPT + (index + 1) * each
        mask[start:end] = 1
        turn_index[PROMPT + index * each : end] = index
        turns.append(_turn(index, end - start, start))
    turn_index[:PROMPT] = 0
    rollouts = [_trajectory(number, turns, int(mask.sum()), tokens) for number in range(first, first + rows)]
    logprobs = np.where(mask == 1, -np.random.default_rng(first).exponential(size=(rows, tokens)), 0.0)
    columns = {
        "trajectory_id": [rollout["id"] for rollout in rollouts],
        "index": [0] * rows,
        "token_ids": list(np.random.default_rng(first).integers(0, 768, size=(rows, tokens), dtype=np.int32)),
        "loss_mask": [mask] * rows,
        "rollout_logprobs": list(logprobs),
        "turn_index": [turn_index] * rows,
        "advantages": list(logprobs),
        **dict.fromkeys(("routed_experts", "experts", "experts_per_token", "policy_numbers"), [None] * rows),
    }
    segments = pa.Table.from_pydict(columns, schema=load_contract("segments").arrow())
    trajectories = pa.Table.from_pylist(rollouts, schema=load_contract("trajectories").arrow())
    return frame_of_arrow(trajectories), frame_of_arrow(segments)


def _turn(index: int, sampled: int, context: int) -> dict[str, object]:
    call = {"name": "edit", "arguments": {"path": "prices.py", "old": "x - 1", "new": "x + 1"}}
    return {
        **{"index": index, "completion": json.dumps(call), "completion_tokens": sampled, "prompt_tokens": context},
        **{"finish_reason": "stop", "calls": [call], "observation": "edited\n", "answers": [{"end": 7}]},
        **{"policy_digest": "a" * 64, "sample_seconds": 0.1, "tool_seconds": 0.01, "cached_tokens": context // 2},
        **{"changed": {"prices.py": "def f(x):\n    return x + 1\n"}, "origins": {"prompt": context}},
    }


def _trajectory(number: int, turns: list[dict[str, object]], sampled: int, tokens: int) -> dict[str, object]:
    files = json.dumps({"prices.py": f"def f(x):\n    return x + {number}\n"})
    return {
        **{"id": f"r-{number}", "run_id": "bench", "iteration": 0, "problem_id": f"p-{number // 8}"},
        **{"horizon": "short", "group_id": f"g-{number // 8}", "rollout_index": number % 8, "detail": ""},
        **{"policy_version": "policy-00000", "policy_digest": "a" * 64, "status": "completed", "submitted": True},
        **{"sampling": json.dumps({"seed": number}), "turns": json.dumps(turns), "prompt_ids": list(range(PROMPT))},
        **{"sampled_tokens": sampled, "context_tokens": tokens, "malformed_calls": 0, "tool_errors": 0},
        **{"files": files, "visible_passed": 1, "visible_total": 1, "hidden_passed": 2, "hidden_total": 2},
        **{"outcome": True, "rewards": json.dumps({"outcome": 1.0, "format": 0.1}), "seconds": 0.25},
    }


def batches(total: int, size: int, tokens: int) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """All rollouts, batch by batch."""
    for first in range(0, total, size):
        yield batch(first, min(size, total - first), tokens)


def main() -> None:
    """Print seconds, rates and the share of a run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--run-seconds-per-rollout", type=float, default=9.5 * 60 / (20 * 128))
    given = parser.parse_args()
    expect("trajectories", batch(0, 8, given.tokens)[0])  # the import of Great Expectations, once a process
    rows, suites = 0.0, 0.0
    for trajectories, segments in batches(given.trajectories, given.batch, given.tokens):
        start = time.process_time()
        whole, parts = validate_rollouts(trajectories, segments)
        middle = time.process_time()
        assert not whole.rejected and not parts.rejected, (whole.counts, parts.counts)
        assert expect("trajectories", trajectories).passed and expect("segments", segments).passed
        rows, suites = rows + middle - start, suites + time.process_time() - middle
    run = given.trajectories * given.run_seconds_per_rollout
    tokens = given.trajectories * given.tokens
    print(f"{given.trajectories:,} trajectories, {tokens:,} tokens (seconds of one core)")
    print(f"rows and rules: {rows:.1f} s, {tokens / rows / 1e6:.2f} million tokens/s")
    print(f"expectations: {suites:.1f} s")
    print(f"share of a run of that many rollouts ({run:,.0f} s): {(rows + suites) / run:.2%}")


if __name__ == "__main__":
    main()
