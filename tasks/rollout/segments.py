"""The token record of a rollout as it grows: what was sampled is trained, what was inserted is not.

prompt(ids), sampled(ids, logprobs, version, routing), prompt(ids), ... -> build() -> Segments
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_contracts.records import Segment, policy_number
from tasks.rollout.engine import Routing


@dataclass(slots=True)
class _Columns:
    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    routing: Routing | None = None

    @property
    def sampled_end(self) -> int:
        """Length up to the last sampled token: what was inserted after it led to nothing."""
        return len(self.loss_mask) - self.loss_mask[::-1].index(1)

    def add(self, ids: Sequence[int], mask: int, logprobs: Sequence[float], turn: int, version: str = "") -> None:
        self.token_ids += ids
        self.loss_mask += [mask] * len(ids)
        self.logprobs += logprobs
        self.turns += [turn] * len(ids)
        self.versions += [version] * len(ids)


class SegmentWriter:
    """Collects a rollout's tokens. A prompt that does not start with all tokens so far begins a new segment."""

    def __init__(self) -> None:
        self._segments: list[_Columns] = []

    @property
    def context(self) -> list[int]:
        """The tokens of the segment under way."""
        return self._segments[-1].token_ids if self._segments else []

    @property
    def index(self) -> int:
        """The segment under way."""
        return len(self._segments) - 1

    def prompt(self, token_ids: Sequence[int], turn: int) -> None:
        """The whole context that `turn` is sampled from; its new tokens carry no loss."""
        known = len(self.context)
        if not self._segments or list(token_ids[:known]) != self.context:
            self._segments.append(_Columns())
            known = 0
        fresh = list(token_ids[known:])
        self._segments[-1].add(fresh, 0, [0.0] * len(fresh), turn)

    def sampled(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        turn: int,
        version: str,
        routing: Routing | None = None,
    ) -> None:
        """What `turn` sampled under a policy version, each token with the log-probability it was drawn with.

        `routing` is that of the whole segment so far. Tokens routed twice (their keys were lost) keep the first: later
        tokens of their turn were sampled after it.
        """
        if len(token_ids) != len(logprobs):
            raise ValueError(f"{len(token_ids)} sampled tokens have {len(logprobs)} log-probabilities")
        columns = self._segments[-1]
        columns.add(token_ids, 1, logprobs, turn, version)
        columns.routing = _continued(columns.routing, routing, len(columns.token_ids) - 1)

    def build(self, trajectory_id: str, *, numbered: bool = False) -> tuple[Segment, ...]:
        """The segments that something was sampled in, each up to its last sampled token.

        `numbered`: with the number of each token's policy version, which may be another than its batch's.
        """
        kept = [columns for columns in self._segments if any(columns.loss_mask)]
        return tuple(
            Segment(
                trajectory_id=trajectory_id,
                index=index,
                token_ids=columns.token_ids[: columns.sampled_end],
                loss_mask=columns.loss_mask[: columns.sampled_end],
                rollout_logprobs=columns.logprobs[: columns.sampled_end],
                turn_index=columns.turns[: columns.sampled_end],
                policy_numbers=_numbers(columns) if numbered else None,
                **_routed(columns.routing),
            )
            for index, columns in enumerate(kept)
        )


def _numbers(columns: _Columns) -> list[int]:
    """The number of the policy version each token was sampled under, -1 where it was not sampled."""
    return [policy_number(version) if version else -1 for version in columns.versions[: columns.sampled_end]]


def _continued(before: Routing | None, now: Routing | None, tokens: int) -> Routing | None:
    """What was routed `before`, and of `now` the tokens after it; `tokens` is how many both must come to."""
    if now is None:
        return None
    if len(now.chosen) != tokens:
        raise ValueError(f"{len(now.chosen)} tokens have recorded experts, {tokens} were read by the model")
    if before is None:
        return now
    return Routing(np.concatenate([before.chosen, now.chosen[len(before.chosen) :]]), now.experts)


def _routed(routing: Routing | None) -> dict[str, Any]:
    """The columns of a segment's routing. Its last token was sampled and read by no forward: it has no experts."""
    if routing is None:
        return {}
    rows = routing.chosen.reshape(len(routing.chosen), -1).tolist()
    return {
        "routed_experts": [*rows, []],
        "experts": routing.experts,
        "experts_per_token": routing.chosen.shape[-1],
    }
