"""Continuous batching for one policy version: a slot per session, its keys and values kept from turn to turn.

submit -> queue -> step(): admit, compact, decode the running rows, prefill the joining ones, sample once -> take()

The rows that decode are read in place as one span from row 0. A session that waits for its tool leaves a hole in the
span; holes are cheaper than moving rows at every turn, so the rows are compacted only when holes pass a third.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tasks.rollout.choice import Noise, choose
from tasks.rollout.engine import Completion, ContextFull, EngineError, SampleRequest
from tasks.rollout.slot_cache import SlotCache
from tasks.rollout.slot_routing import RouteLog, RouteRecorder, routes

_PREFILL_TOKENS = 8192
"""Padded tokens of one prefill forward at most, unless one row alone has more."""


@dataclass(slots=True, eq=False)
class _Slot:
    """One session: `held` are the tokens whose keys and values lie in its row, `log` says where they were routed."""

    session: str
    row: int
    noise: Noise
    held: list[int] = field(default_factory=list)
    log: RouteLog = field(default_factory=RouteLog)
    turn: _Turn | None = None

    @property
    def running(self) -> _Turn:
        if self.turn is None:
            raise RuntimeError(f"session {self.session} has no turn under way")
        return self.turn


@dataclass(slots=True, eq=False)
class _Turn:
    """A request under way."""

    request: SampleRequest
    room: int
    order: int
    started: float
    cached: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class SlotPool:
    """The slots of one model. `digest` is what its completions carry; `slots` how many sessions it holds at once."""

    def __init__(self, model: Any, version: str, digest: str, *, slots: int) -> None:
        self._model, self.version, self.digest = model, version, digest
        self._device = next(model.parameters()).device
        self.context_limit = context_limit(model.config)
        self._cache = SlotCache()
        self._recorder = RouteRecorder(model)
        self._rows: list[_Slot | None] = [None] * slots
        self._slots: dict[str, _Slot] = {}
        self._queue: deque[_Turn] = deque()
        self._decoding: list[_Slot] = []
        self._finished: list[tuple[int, str, Completion]] = []
        self._orders = 0

    @property
    def busy(self) -> bool:
        """Whether any turn is queued, under way, or not yet taken."""
        return bool(self._queue or self._decoding or self._finished)

    def submit(self, request: SampleRequest) -> None:
        slot = self._slots.get(request.session)
        if (slot and slot.turn) or any(turn.request.session == request.session for turn in self._queue):
            raise ValueError(f"session {request.session} has a turn under way: take its completion first")
        if not request.token_ids or request.max_tokens < 1:
            raise ValueError(f"session {request.session}: a request needs a token to start from and one to sample")
        room = min(request.max_tokens, self.context_limit - len(request.token_ids))
        if room < 1:
            message = f"{len(request.token_ids)} tokens fill the model's context of {self.context_limit}"
            raise ContextFull(message, (request.session,))
        self._queue.append(_Turn(request, room, self._orders, time.perf_counter()))
        self._orders += 1

    def close(self, session: str) -> None:
        self._queue = deque(turn for turn in self._queue if turn.request.session != session)
        self._finished = [entry for entry in self._finished if entry[1] != session]
        if slot := self._slots.pop(session, None):
            self._rows[slot.row] = None
            self._decoding = [other for other in self._decoding if other is not slot]

    def so_far(self, session: str) -> list[int]:
        """Tokens that the session's turn under way has sampled."""
        slot = self._slots.get(session)
        return list(slot.turn.token_ids) if slot and slot.turn else []

    def take(self) -> list[tuple[str, Completion]]:
        """What has finished, in the order of the requests."""
        done = [(session, completion) for _, session, completion in sorted(self._finished, key=lambda e: e[0])]
        self._finished = []
        return done

    @torch.inference_mode()
    def step(self) -> None:
        """Sample one token for every running turn, those that join with this step included."""
        decoding, joining = self._decoding, self._admit()
        running = decoding + joining
        if not running:
            return
        self._decoding = running
        self._compact(running)
        lengths = [len(slot.held) + 1 for slot in decoding] + [len(slot.running.request.token_ids) for slot in joining]
        self._cache.reserve(1 + max(slot.row for slot in running), max(lengths))
        logits = [self._decode(decoding)] if decoding else []
        logits += [self._prefill(joining)] if joining else []
        self._sample(running, torch.cat(logits))

    def _admit(self) -> list[_Slot]:
        """Turns whose session has a slot, or for whose session one is free, first come first served."""
        joining: list[_Slot] = []
        waiting: deque[_Turn] = deque()
        for turn in self._queue:
            slot = self._slots.get(turn.request.session) or self._open(turn.request)
            if slot is None:
                waiting.append(turn)
                continue
            ids = turn.request.token_ids
            if list(ids[: len(slot.held)]) != slot.held:
                slot.held = []
            # At least one token goes through the model, to have something to sample from.
            turn.cached = min(len(slot.held), len(ids) - 1)
            slot.log.cut(turn.cached)
            slot.turn = turn
            joining.append(slot)
        self._queue = waiting
        return joining

    def _open(self, request: SampleRequest) -> _Slot | None:
        if len(self._slots) == len(self._rows):
            return None
        slot = _Slot(request.session, self._rows.index(None), Noise(request.seed))
        self._rows[slot.row] = self._slots[request.session] = slot
        return slot

    def _compact(self, running: list[_Slot]) -> None:
        """Move the running slots to the lowest rows, when too much of their span is holes."""
        count, span = len(running), 1 + max(slot.row for slot in running)
        if span - count <= max(4, span // 3):
            return
        taken = {slot.row for slot in running}
        low = [row for row in range(count) if row not in taken]
        high = sorted((slot for slot in running if slot.row >= count), key=lambda slot: slot.row)
        source, target, length = [], [], 0
        for slot, row in zip(high, low, strict=True):
            other, old = self._rows[row], slot.row
            self._rows[row], self._rows[old], slot.row = slot, other, row
            source.append(old)
            target.append(row)
            length = max(length, len(slot.held))
            if other is not None:
                other.row = old
                source.append(row)
                target.append(old)
                length = max(length, len(other.held))
        self._cache.reserve(span, length)
        self._cache.copy_rows(source, target, length)

    def _decode(self, slots: list[_Slot]) -> Tensor:
        """One token for each row of the span: [N, V], in the order of `slots`. Holes compute, and write to scrap."""
        span = 1 + max(slot.row for slot in slots)
        tokens, positions, writes = [0] * span, [0] * span, [-1] * span
        for slot in slots:
            tokens[slot.row] = slot.running.token_ids[-1]
            positions[slot.row] = writes[slot.row] = len(slot.held)
            slot.held.append(tokens[slot.row])
        column = [[value] for value in tokens], [[value] for value in positions], [[value] for value in writes]
        logits, chosen = self._forward(slice(0, span), *column)
        if chosen is not None:
            for slot in slots:
                slot.log.add(chosen[slot.row])
        return logits[[slot.row for slot in slots]]

    def _prefill(self, slots: list[_Slot]) -> Tensor:
        """The new context tokens of joining slots, as few padded forwards: [N, V], in the order of `slots`.

        Sessions that start from the same prompt (a group's rollouts) share one row's work, copied to the others.
        """
        leads: dict[object, list[_Slot]] = {}
        for slot in slots:
            turn = slot.running
            leads.setdefault(tuple(turn.request.token_ids) if turn.cached == 0 else slot.session, []).append(slot)
        groups = sorted(leads.values(), key=lambda group: (_fresh(group[0]), group[0].row))
        logits: dict[str, Tensor] = {}
        for batch in ragged_batches([_fresh(group[0]) for group in groups]):
            chosen = groups[batch]
            for group, row in zip(chosen, self._prefill_batch([group[0] for group in chosen]), strict=True):
                for slot in group:
                    slot.held = list(slot.running.request.token_ids)
                    logits[slot.session] = row
        pairs = [(group[0], slot) for group in groups for slot in group[1:]]
        if pairs:
            length = max(len(slot.held) for _, slot in pairs)
            self._cache.copy_rows([lead.row for lead, _ in pairs], [slot.row for _, slot in pairs], length)
        for lead, slot in pairs:
            slot.log = lead.log.copy()
        return torch.stack([logits[slot.session] for slot in slots])

    def _prefill_batch(self, slots: list[_Slot]) -> Tensor:
        # Padded on the left, so that the last token of every row is the one whose logits are asked for.
        width = max(map(_fresh, slots))
        tokens, positions, writes = [], [], []
        for slot in slots:
            ids, start = slot.running.request.token_ids, slot.running.cached
            pad, spread = width - _fresh(slot), list(range(start, len(ids)))
            tokens.append([0] * pad + list(ids[start:]))
            positions.append([0] * pad + spread)
            writes.append([-1] * pad + spread)
        rows = [slot.row for slot in slots]
        in_place = rows == list(range(rows[0], rows[0] + len(rows)))
        view = slice(rows[0], rows[0] + len(rows)) if in_place else torch.tensor(rows)
        logits, chosen = self._forward(view, tokens, positions, writes)
        if chosen is not None:
            for slot, row in zip(slots, chosen, strict=True):
                slot.log.add(row[width - _fresh(slot) :])
        return logits

    def _forward(
        self, rows: slice | Tensor, tokens: list[list[int]], positions: list[list[int]], writes: list[list[int]]
    ) -> tuple[Tensor, np.ndarray | None]:
        """Logits of the last column [N, V] for tokens [N, T] at `positions`, their keys and values put at `writes`.

        With them the experts that the tokens were sent to, [N, T, layers, per token]; None of a dense model.
        """
        ids, places, targets = (torch.tensor(part, device=self._device) for part in (tokens, positions, writes))
        length = int(places.max()) + 1
        self._cache.plan(rows, targets, length)
        seen = torch.arange(length, device=self._device) <= places[:, :, None]
        mask = torch.zeros(seen.shape, device=self._device).masked_fill_(~seen, float("-inf"))[:, None]
        with self._recorder.recording() as chosen:
            out = self._model(
                ids,
                position_ids=places,
                attention_mask=mask,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
        return out.logits[:, -1], routes(chosen, ids.shape)

    def _sample(self, running: list[_Slot], logits: Tensor) -> None:
        requests = [slot.running.request for slot in running]
        tokens, logprobs = choose(
            logits,
            [request.temperature for request in requests],
            [request.top_p for request in requests],
            [slot.noise.draw() for slot in running],
        )
        broken = [slot.session for slot, logprob in zip(running, logprobs, strict=True) if logprob != logprob]
        for slot, token, logprob in zip(running, tokens, logprobs, strict=True):
            turn = slot.running
            turn.token_ids.append(token)
            turn.logprobs.append(logprob)
            stopped = token in turn.request.stop_ids
            if stopped or len(turn.token_ids) == turn.room:
                self._finish(slot, stopped)
        self._decoding = [slot for slot in running if slot.turn]
        for session in broken:
            self.close(session)
        if broken:
            raise EngineError(f"policy {self.version} gave logits that are no finite numbers", tuple(broken))

    def _finish(self, slot: _Slot, stopped: bool) -> None:
        turn = slot.running
        completion = Completion(
            token_ids=turn.token_ids,
            logprobs=turn.logprobs,
            finish_reason="stop" if stopped else "length",
            policy_version=self.version,
            policy_digest=self.digest,
            prompt_tokens=len(turn.request.token_ids),
            cached_tokens=turn.cached,
            seconds=time.perf_counter() - turn.started,
            routing=slot.log.routing(self._recorder.experts),
        )
        slot.turn = None
        self._finished.append((turn.order, slot.session, completion))


def context_limit(config: Any) -> int:
    """Most tokens a session may have: the positions the model knows, or its sliding window where that is shorter.

    Within one window sliding attention is full attention, which is what the slots' mask says.
    """
    text = config.get_text_config()
    known = (getattr(text, "max_position_embeddings", None), getattr(text, "sliding_window", None))
    return min((limit for limit in known if limit), default=2**31)


def ragged_batches(lengths: Sequence[int]) -> Iterator[slice]:
    """Cut ascending row lengths into batches, where padding would cost more than another forward saves."""
    start, real = 0, 0
    for end, length in enumerate(lengths):
        padded = (end - start + 1) * length
        too_much = padded > _PREFILL_TOKENS or padded - real - length > max(256, real // 2)
        if end > start and too_much:
            yield slice(start, end)
            start, real = end, 0
        real += length
    if lengths:
        yield slice(start, len(lengths))


def _fresh(slot: _Slot) -> int:
    """Context tokens of the turn that the slot does not hold yet."""
    return len(slot.running.request.token_ids) - slot.running.cached
