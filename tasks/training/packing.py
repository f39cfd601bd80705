"""Which segments are computed together.

segments -> minibatches of whole rollouts (one optimizer step each) -> micro-batches of similar length -> Packed

Only what a sampled token needs is computed: a row ends before its last sampled token, and the head sees only the
positions that predict one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from data_contracts.records import Segment
from tasks.training.routing import recorded_experts


@dataclass(frozen=True, slots=True)
class Packed:
    """A micro-batch: `positions[n]` (in the flattened B*T) predicts `targets[n]`.

    Packed: one row, segment b from `bounds[b]` to `bounds[b+1]` (on the CPU), its positions counted from 0.
    Padded: a row a segment; `bounds` and `position_ids` are None.
    The N sampled tokens stand in order of segment, then of position; `counts[b]` of them belong to segment b.
    `routed_experts` [B*T,layers,per_token] are the experts to replay, -1 where none are; None where no segment has any.
    """

    token_ids: Tensor
    position_ids: Tensor | None
    positions: Tensor
    targets: Tensor
    counts: list[int]
    bounds: Tensor | None
    routed_experts: Tensor | None = None


def sampled_positions(segment: Segment) -> list[int]:
    """Return the indices of the sampled tokens of a segment."""
    return [t for t, sampled in enumerate(segment.loss_mask) if sampled]


def pack(
    segments: Sequence[Segment], device: torch.device | str = "cpu", *, packed: bool = True, replay: bool = True
) -> Packed:
    """Lay segments end to end in one row, or padded to the right in a row each (causal attention needs no mask).

    `replay`: with the experts that their tokens were routed to.
    """
    sampled = [sampled_positions(segment) for segment in segments]
    if any(positions and positions[0] == 0 for positions in sampled):
        raise ValueError("a segment's first token is marked as sampled: it has no context to be predicted from")
    lengths = [positions[-1] if positions else 1 for positions in sampled]
    width = max(lengths, default=1)
    starts = [0, *accumulate(lengths if packed else [width] * len(lengths))]
    token_ids, position_ids = torch.zeros(2, starts[-1], dtype=torch.long)
    for segment, start, length in zip(segments, starts, lengths, strict=False):
        token_ids[start : start + length] = torch.tensor(segment.token_ids[:length], dtype=torch.long)
        position_ids[start : start + length] = torch.arange(length)
    flat = [start + t - 1 for start, positions in zip(starts, sampled, strict=False) for t in positions]
    targets = [segment.token_ids[t] for segment, positions in zip(segments, sampled, strict=True) for t in positions]
    experts = recorded_experts(segments, starts, lengths) if replay else None
    shape = (1, starts[-1]) if packed else (len(segments), width)
    return Packed(
        token_ids=token_ids.view(shape).to(device),
        position_ids=position_ids.view(shape).to(device) if packed else None,
        positions=torch.tensor(flat, dtype=torch.long, device=device),
        targets=torch.tensor(targets, dtype=torch.long, device=device),
        counts=[len(positions) for positions in sampled],
        bounds=torch.tensor(starts) if packed else None,
        routed_experts=None if experts is None else experts.to(device),
    )


def computed_length(segment: Segment) -> int:
    """Return how many tokens the model must read to predict the segment's last sampled token."""
    return max((t for t, sampled in enumerate(segment.loss_mask) if sampled), default=0)


def has_signal(segment: Segment) -> bool:
    """Whether any sampled token has an advantage other than zero (NaN counts: it must be seen, not skipped)."""
    if segment.advantages is None:
        raise ValueError(f"segment {segment.trajectory_id}/{segment.index} has no advantages: assign credit first")
    return any(
        sampled and advantage != 0 for sampled, advantage in zip(segment.loss_mask, segment.advantages, strict=True)
    )


def minibatches(segments: Sequence[Segment], count: int, *, seed: int, iteration: int, epoch: int) -> list[list[int]]:
    """Deal whole rollouts to at most `count` minibatches; return the indices of each one's segments.

    A function of (seed, iteration, epoch) alone. Rollouts with a signal are dealt first, so that every minibatch has
    its share of them; without any there is no minibatch, since a step without gradient would only move by momentum.
    """
    rollouts: dict[str, list[int]] = {}
    for index, segment in enumerate(segments):
        rollouts.setdefault(segment.trajectory_id, []).append(index)
    live = {key for key, members in rollouts.items() if any(has_signal(segments[i]) for i in members)}
    order = sorted(rollouts)
    random.Random(f"{seed}/{iteration}/{epoch}").shuffle(order)
    order.sort(key=lambda key: key not in live)
    parts = min(count, len(live))
    return [[i for key in order[part::parts] for i in rollouts[key]] for part in range(parts)]


def micro_batches(lengths: Sequence[int], limit: int, *, packed: bool = True) -> list[list[int]]:
    """Group indices by length so that a group's tokens, its padding included, stay within `limit`.

    A single row that is longer than the limit stands alone.
    """
    groups: list[list[int]] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        # the group's first row is its longest: every other is padded to it
        added = lengths[index] if packed or not groups else lengths[groups[-1][0]]
        if groups and tokens + added <= limit:
            groups[-1].append(index)
            tokens += added
        else:
            groups.append([index])
            tokens = lengths[index]
    return groups


def rank_share(groups: list[list[int]], rank: int, world: int) -> list[list[int]]:
    """Return one rank's micro-batches. All ranks get equally many, empty ones included: their collectives must pair."""
    rounds = -(-len(groups) // world)
    return [groups[i * world + rank] if i * world + rank < len(groups) else [] for i in range(rounds)]
