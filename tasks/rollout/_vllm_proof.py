"""Proof that a server serves a policy version: its log-probabilities against the version's own forward pass.

fixed probe -> server: forced and sampled log-probabilities <-> transformers with the adapter: the same, or EngineError
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tasks.rollout._vllm_wire import Answer
from tasks.rollout.engine import EngineError, SampleRequest

PROBE_TOKENS, SAMPLED_TOKENS, TEMPERATURE = 32, 8, 0.7
_NOISE = 1e-5
"""Weights that move no log-probability of the probe by more than this can not be told from those before by it."""

Expected = Callable[[Path | None, Sequence[int], Sequence[float]], list[float]]
"""(adapter or full weights, tokens, temperatures) -> log p(token i+1 | 0..i) at temperatures[i], by the trainer."""


def probe_request(vocabulary: int) -> SampleRequest:
    """Some fixed tokens, and a few to sample at a temperature that is not 1."""
    tokens = [(7 * i + 3) % vocabulary for i in range(PROBE_TOKENS)]
    return SampleRequest("probe", "", tokens, SAMPLED_TOKENS, temperature=TEMPERATURE, seed=0)


def prove(
    version: str,
    weights: Path | None,
    answer: Answer,
    request: SampleRequest,
    expected: Expected,
    limit: float,
    *,
    before: tuple[Path | None, Answer] | None = None,
) -> None:
    """Compare a server's answer to the probe with the forward of a version's `weights` (None: the base alone).

    `before` is an answer of the server under other weights: the base for an adapter, the old ones for a reload. Raises
    EngineError for a log-probability that is off by `limit` nats or more, and for weights whose effect the server does
    not show: those that never reached it look like the ones before, however little they differ.
    """
    tokens = [*request.token_ids, *answer.token_ids]
    forced = len(request.token_ids) - 1
    wanted = expected(weights, tokens, [1.0] * forced + [request.temperature] * len(answer.token_ids))
    kinds = (
        ("of given tokens", answer.prompt_logprobs, wanted[:forced]),
        (f"sampled at temperature {request.temperature:g}", answer.logprobs, wanted[forced:]),
    )
    for kind, served, right in kinds:
        if not (gap := _gap(served, right)) < limit:
            raise EngineError(
                f"a vLLM server does not serve {version}: its log-probabilities {kind} are off by {gap:.2g} from those "
                f"of the trainer's weights (limit {limit:g}, rollout.vllm.probe_limit); it has other weights, "
                "other settings (--logprobs-mode processed_logprobs) or less precision (rollout.vllm.dtype)"
            )
    if before is not None:
        effect = _gap(wanted[:forced], expected(before[0], request.token_ids, [1.0] * forced))
        moved = _gap(answer.prompt_logprobs, before[1].prompt_logprobs)
        if effect > _NOISE and not moved > effect / 2:
            raise EngineError(
                f"a vLLM server answers for {version} as for {before[0] or 'the base'}: the new weights move a "
                f"log-probability by {effect:.2g}, the server's moved by {moved:.2g}; they did not reach it"
            )


def _gap(some: Sequence[float], others: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(some, others, strict=True))
