"""Which decisions of an iteration are worth sampling again.

verified rollouts + entropies -> first edits after a failing test, least certain turns -> a few, spread over the groups
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from data_contracts.records import Segment, Trajectory, Turn
from tasks.credit.config import BranchConfig

Kind = Literal["edit", "entropy"]
Entropies = Mapping[str, Mapping[int, float]]
"""By trajectory id: the mean entropy (nats) of the tokens a turn sampled, by the turn's number."""


class Decision(NamedTuple):
    """A turn of a rollout, and why it was chosen."""

    trajectory_id: str
    turn: int
    kind: Kind


def choose_decisions(trajectories: Sequence[Trajectory], entropies: Entropies, config: BranchConfig) -> list[Decision]:
    """At most `config.decisions`: `entropy_share` of them each rollout's least certain turn, the rest first edits.

    Groups whose outcomes differ come first, one decision of each in turn, the least certain before the others. A
    rollout that has none to compare with, or one turn alone, offers none: nothing could be learnt. Equal input gives
    equal decisions, and a place that one kind leaves empty stays empty.
    """
    groups = _comparable(trajectories)
    uncertain = round(config.decisions * config.entropy_share)
    edits = [Decision(t.id, turn, "edit") for t in _all(groups) if (turn := first_edit(t)) is not None]
    chosen = _spread(edits, groups, entropies)[: config.decisions - uncertain]
    taken = {(decision.trajectory_id, decision.turn) for decision in chosen}
    turns = [(t.id, turn) for t in _all(groups) if (turn := _least_certain(t, entropies, taken)) is not None]
    doubtful = [Decision(name, turn, "entropy") for name, turn in turns]
    return chosen + _spread(doubtful, groups, entropies)[:uncertain]


def first_edit(trajectory: Trajectory) -> int | None:
    """The first turn that changed files while the visible checks, when they last ran, did not all pass."""
    seen: tuple[int, int] | None = None
    for turn in trajectory.turns:
        if turn.changed and seen is not None and seen[0] < seen[1]:
            return turn.index
        seen = turn.visible or seen
    return None


def points(decision: Decision, trajectory: Trajectory) -> list[int]:
    """The turns to sample again from: the decision's own and the next, where their values are not known anyway.

    Before the first turn a rollout is worth what its group is, after the last one its reward.
    """
    return [turn for turn in (decision.turn, decision.turn + 1) if 0 < turn < len(trajectory.turns)]


def turn_entropies(segments: Sequence[Segment], entropies: Sequence[Sequence[float]]) -> dict[str, dict[int, float]]:
    """The mean entropy of each turn; `entropies` holds, for each segment, one at each sampled token, in order."""
    found: dict[str, dict[int, float]] = {}
    for segment, sampled in zip(segments, entropies, strict=True):
        owners = [turn for turn, mask in zip(segment.turn_index, segment.loss_mask, strict=True) if mask]
        for turn, pairs in groupby(zip(owners, sampled, strict=True), key=lambda pair: pair[0]):
            values = [value for _, value in pairs]
            found.setdefault(segment.trajectory_id, {})[turn] = sum(values) / len(values)
    return found


def _comparable(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """The scorable rollouts by group, where there are at least two."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.scorable:
            groups.setdefault(trajectory.group_id, []).append(trajectory)
    return {name: group for name, group in groups.items() if len(group) > 1}


def _all(groups: Mapping[str, list[Trajectory]]) -> list[Trajectory]:
    return [trajectory for group in groups.values() for trajectory in group if len(trajectory.turns) > 1]


def _least_certain(trajectory: Trajectory, entropies: Entropies, taken: set[tuple[str, int]]) -> int | None:
    known = entropies.get(trajectory.id, {})
    free = [turn for turn in trajectory.turns if _is_work(turn, known) and (trajectory.id, turn.index) not in taken]
    return max(free, key=lambda turn: known[turn.index]).index if free else None


def _is_work(turn: Turn, known: Mapping[int, float]) -> bool:
    return turn.purpose == "work" and turn.index in known


def _spread(
    decisions: Sequence[Decision], groups: Mapping[str, list[Trajectory]], entropies: Entropies
) -> list[Decision]:
    """In the order in which to take them."""
    group_of = {t.id: name for name, group in groups.items() for t in group}
    even = {name for name, group in groups.items() if len({t.outcome for t in group}) == 1}
    taken: dict[str, int] = {}
    ranked = []
    for decision in sorted(decisions, key=lambda d: (-_entropy(d, entropies), d.trajectory_id)):
        group = group_of[decision.trajectory_id]
        rank = taken[group] = taken.get(group, -1) + 1
        ranked.append((group in even, rank, decision))
    return [decision for *_, decision in sorted(ranked, key=lambda each: each[:2])]


def _entropy(decision: Decision, entropies: Entropies) -> float:
    return entropies.get(decision.trajectory_id, {}).get(decision.turn, 0.0)
