"""What goes to a vLLM server and what comes back, as plain values; no network.

SampleRequest -> body of POST /v1/completions;  its JSON answer -> Answer;  GET /metrics -> Pressure

Every sampling parameter is sent, so that no default of a server or of a model's generation_config.json decides one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client.parser import text_string_to_metric_families

from tasks.rollout.engine import EngineError, Pressure, SampleRequest

CLAMPED = -9999.0
"""What vLLM writes for a log-probability of minus infinity."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice: sampled tokens and their log-probabilities; those of the prompt, from its second token, if asked."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]
    cached_tokens: int
    prompt_logprobs: list[float]


def turn_seed(seed: int, turn: int) -> int:
    """The seed of a session's `turn`-th request: each turn draws noise of its own, all of it decided by the session's.

    vLLM starts a fresh generator for every request; one seed for all turns would give each turn the same noise.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{turn}".encode()).digest()[:8]) >> 1


def sampling_body(model: str, request: SampleRequest, max_tokens: int, seed: int) -> dict[str, Any]:
    """The request's turn under `model`'s name. Only the request's own stop ids end it, not the model's EOS."""
    return {
        "model": model,
        "prompt": list(request.token_ids),
        "max_tokens": max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "seed": seed,
        "stop_token_ids": sorted(request.stop_ids),
        "ignore_eos": True,
        "n": 1,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": 0,
        "return_token_ids": True,
        "skip_special_tokens": False,
    }


def scoring_body(model: str, token_ids: Sequence[int]) -> dict[str, Any]:
    """Log-probabilities of given tokens; such a request reads no cached prefix. vLLM samples at least one token."""
    return sampling_body(model, SampleRequest("", model, token_ids, 1, temperature=0.0), 1, 0) | {"prompt_logprobs": 0}


def read_answer(payload: Any) -> Answer:
    """The one choice of an answer. Raises EngineError for one that is not of the form, or not all finite numbers."""
    try:
        (choice,) = payload["choices"]
        tokens = [int(token) for token in choice["token_ids"]]
        logprobs = [_finite(value) for value in choice["logprobs"]["token_logprobs"]]
        reason = choice["finish_reason"]
        details = payload["usage"].get("prompt_tokens_details") or {}
        forced = choice.get("prompt_logprobs") or [None]
        prompt = [_finite(entry["logprob"]) for position in forced[1:] for entry in position.values()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"a vLLM server's answer is not of the expected form ({error!r}): {_cut(payload)}") from error
    if len(tokens) != len(logprobs) or not tokens or len(prompt) != len(forced) - 1:
        raise EngineError(f"a vLLM server answered {len(tokens)} tokens with {len(logprobs)} log-probabilities")
    if reason not in ("stop", "length"):
        raise EngineError(f"a vLLM server ended a turn with {reason!r}")
    return Answer(tokens, logprobs, reason, int(details.get("cached_tokens") or 0), prompt)


def base_model(payload: Any) -> tuple[str, int]:
    """Name of the base model and longest context, from GET /v1/models. Adapters there have a parent."""
    try:
        (base,) = (model for model in payload["data"] if not model.get("parent"))
        return str(base["id"]), int(base["max_model_len"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"a vLLM server does not say its one base model and its context: {_cut(payload)}") from error


def read_pressure(text: str) -> Pressure | None:
    """The KV-cache of a server, all its engines together, from GET /metrics; None where the gauge is not there."""
    uses: list[float] = []
    preemptions = 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "vllm:kv_cache_usage_perc":
                uses.append(sample.value)
            elif sample.name == "vllm:num_preemptions_total":
                preemptions += sample.value
    return Pressure(max(uses), int(preemptions)) if uses else None


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number <= CLAMPED:
        raise ValueError(f"log-probability {value}")
    return number


def _cut(payload: Any) -> str:
    text = str(payload)
    return text if len(text) <= 300 else text[:300] + " ..."
