"""Which segments are computed together.

segments -> minibatches of whole rollouts (one optimizer step each) -> micro-batches of similar length -> Packed

Only what a sampled token needs is computed: a row ends before its last sampled token, and the head sees only the
positions that predict one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from data_contracts.records import Segment


@dataclass(frozen=True, slots=True)
class Packed:
    """A padded micro-batch: `positions[n]` (in the flattened B*T) predicts `targets[n]`.

    The N sampled tokens stand in order of row, then of position; `counts[b]` of them belong to row b.
    """

    token_ids: Tensor
    positions: Tensor
    targets: Tensor
    counts: list[int]


def sampled_positions(segment: Segment) -> list[int]:
    """Return the indices of the sampled tokens of a segment."""
    return [t for t, sampled in enumerate(segment.loss_mask) if sampled]


def pack(segments: Sequence[Segment], device: torch.device | str = "cpu") -> Packed:
    """Pad segments to the right into one batch. Right padding needs no attention mask: attention is causal."""
    sampled = [sampled_positions(segment) for segment in segments]
    if any(positions and positions[0] == 0 for positions in sampled):
        raise ValueError("a segment's first token is marked as sampled: it has no context to be predicted from")
    width = max((positions[-1] for positions in sampled if positions), default=1)
    rows = torch.zeros(len(segments), width, dtype=torch.long)
    for row, segment in enumerate(segments):
        ids = segment.token_ids[:width]
        rows[row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
    flat = [row * width + t - 1 for row, positions in enumerate(sampled) for t in positions]
    targets = [segments[row].token_ids[t] for row, positions in enumerate(sampled) for t in positions]
    return Packed(
        token_ids=rows.to(device),
        positions=torch.tensor(flat, dtype=torch.long, device=device),
        targets=torch.tensor(targets, dtype=torch.long, device=device),
        counts=[len(positions) for positions in sampled],
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


def micro_batches(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Group indices by length so that rows x longest row stays within `limit`; a longer single row stands alone."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        longest = lengths[groups[-1][0]] if groups else 0
        if groups and (len(groups[-1]) + 1) * longest <= limit:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def rank_share(groups: list[list[int]], rank: int, world: int) -> list[list[int]]:
    """Return one rank's micro-batches. All ranks get equally many, empty ones included: their collectives must pair."""
    rounds = -(-len(groups) // world)
    return [groups[i * world + rank] if i * world + rank < len(groups) else [] for i in range(rounds)]
