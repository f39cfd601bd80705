"""The in-process engine: one merged copy of the model per policy version, each with its own slots.

load_adapter -> SlotPool;  submit -> the pool of the request's version;  poll -> one token for every running session
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from data_contracts.errors import UserError
from tasks.rollout.engine import Completion, EngineError, SampleRequest
from tasks.rollout.slot_cache import ATTENTION
from tasks.rollout.slot_pool import SlotPool

if TYPE_CHECKING:
    from models.policy import Base

_PROBE = 9
_TOLERANCE = 1e-3


class SlotEngine:
    """Samples with any transformers causal model of full attention, on the device its copies lie on.

    `model_of` makes a fresh model for an adapter folder (None: the base) which the engine then owns; `digest_of` tells
    its digest. A session belongs to one version: asking for it under another one forgets what it held.
    """

    def __init__(
        self, model_of: Callable[[Path | None], Any], digest_of: Callable[[Path | None], str], *, slots: int = 128
    ) -> None:
        self._model_of, self._digest_of, self._slots = model_of, digest_of, slots
        self._pools: dict[str, SlotPool] = {}
        self._models: dict[str, Any] = {}

    @classmethod
    def from_base(cls, base: Base, *, slots: int = 128) -> SlotEngine:
        """The engine for a base model and its LoRA adapters."""
        from models.fingerprint import digest_folder
        from models.policy import merged_model

        return cls(
            lambda adapter: merged_model(base, adapter),
            lambda adapter: base.digest if adapter is None else digest_folder(adapter),
            slots=slots,
        )

    def load_adapter(self, version: str, path: Path | None) -> str:
        """Serve the adapter at `path` as `version`; loading the same weights again is no work.

        Raises UserError for a model that the slots can not sample, ValueError for a name that stands for other weights.
        """
        digest = self._digest_of(path)
        if version in self._pools:
            if self._pools[version].digest != digest:
                raise ValueError(f"{version} is loaded with other weights: give new weights a new name")
            return digest
        model = self._model_of(path)
        _check(model)
        self._pools[version] = _proven(model, version, digest, self._slots)
        self._models[version] = model
        return digest

    def drop_adapter(self, version: str) -> None:
        """Free a version's weights and slots. Raises EngineError while turns of it are under way."""
        if self._pool(version).busy:
            raise EngineError(f"{version} has turns under way: close their sessions before dropping it")
        del self._pools[version], self._models[version]

    def submit(self, request: SampleRequest) -> None:
        pool = self._pool(request.policy_version, request.session)
        for other in self._pools.values():
            if other is not pool:
                other.close(request.session)
        pool.submit(request)

    def poll(self) -> list[tuple[str, Completion]]:
        """One token for every running session, those of all versions; then what has ended, by version and request."""
        for pool in self._pools.values():
            pool.step()
        return [ended for pool in self._pools.values() for ended in pool.take()]

    def close_session(self, session: str) -> None:
        for pool in self._pools.values():
            pool.close(session)

    def so_far(self, session: str) -> list[int]:
        """Tokens that the session's turn under way has sampled."""
        return next((ids for pool in self._pools.values() if (ids := pool.so_far(session))), [])

    def pressure(self) -> None:
        """None: the cache grows with its slots, and nothing is ever preempted."""

    def teacher_force(self, version: str, token_ids: Sequence[int]) -> list[float]:
        """By a plain forward over the whole sequence: no slots, no cache, transformers' own attention."""
        self._pool(version)
        logprobs = _plain_logprobs(self._models[version], token_ids)[:-1]
        targets = torch.tensor(list(token_ids[1:]), device=logprobs.device)
        forced: list[float] = logprobs.gather(1, targets[:, None]).squeeze(-1).tolist()
        return forced

    def _pool(self, version: str, *sessions: str) -> SlotPool:
        if version not in self._pools:
            raise EngineError(f"policy version {version} is not loaded: call load_adapter first", sessions)
        return self._pools[version]


def _check(model: Any) -> None:
    """Refuse what the slots' mask and cache can not express, and a float type that a CPU can not multiply."""
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if other := kinds - {"full_attention", "sliding_attention"}:
        raise UserError(f"the base model has layers of {sorted(other)}: choose one with full attention in every layer")
    parameter = next(model.parameters())
    if parameter.device.type == "cpu" and parameter.dtype != torch.float32:
        raise UserError(f"the base model is {parameter.dtype} on a CPU: load it with dtype float32")


@torch.inference_mode()
def _plain_logprobs(model: Any, token_ids: Sequence[int]) -> torch.Tensor:
    """Log-probabilities [T, V] in float32 of a forward without slots."""
    ids = torch.tensor([list(token_ids)], device=next(model.parameters()).device)
    return torch.log_softmax(model(ids, use_cache=False).logits[0].float(), dim=-1)


def _proven(model: Any, version: str, digest: str, slots: int) -> SlotPool:
    """A pool for `model`, after two sessions of unequal length on it agreed with the model's own forward.

    That finds a model whose attention does more than the slots' attention, before anything is sampled from it.
    """
    probe = [(7 * i + 3) % model.config.get_text_config().vocab_size for i in range(_PROBE)]
    expected = _plain_logprobs(model, probe).max(dim=-1).values
    model.set_attn_implementation(ATTENTION)
    pool = SlotPool(model, version, digest, slots=max(2, slots))
    for lengths in ({"a": 4, "b": 6}, {"a": 7, "b": _PROBE}):
        for session, length in lengths.items():
            pool.submit(SampleRequest(session, version, probe[:length], 1, temperature=0.0))
        pool.step()
        for session, completion in pool.take():
            off = abs(completion.logprobs[0] - float(expected[lengths[session] - 1]))
            if not off < _TOLERANCE:
                raise UserError(
                    f"the base model's log-probabilities through the slots are off by {off:.2g}: its attention is of a "
                    "kind that the in-process engine does not compute; choose a base with plain softmax attention"
                )
    return SlotPool(model, version, digest, slots=slots)
