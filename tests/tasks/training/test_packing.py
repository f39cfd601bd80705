from __future__ import annotations

from collections import Counter

import pytest

from data_contracts.records import Segment
from tasks.training.packing import (
    computed_length,
    has_signal,
    micro_batches,
    minibatches,
    pack,
    rank_share,
    sampled_positions,
)


def _segment(
    rollout: str, mask: list[int], advantage: float | None = 1.0, index: int = 0, first_id: int = 10
) -> Segment:
    zeros = [0.0] * len(mask)
    return Segment(
        trajectory_id=rollout, index=index, token_ids=list(range(first_id, first_id + len(mask))), loss_mask=mask,
        rollout_logprobs=zeros, turn_index=[0] * len(mask),
        advantages=None if advantage is None else [advantage * m for m in mask],
    )  # fmt: skip


def test_pack_holds_what_sampled_tokens_need_and_no_more() -> None:
    packed = pack([_segment("a", [0, 1, 0, 1, 0, 0]), _segment("b", [0, 0, 1, 0], first_id=20)])
    assert packed.token_ids.tolist() == [[10, 11, 12, 20, 21]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 0, 1]]
    assert packed.bounds.tolist() == [0, 3, 5]
    assert packed.targets.tolist() == [11, 13, 22]
    assert packed.positions.tolist() == [0, 2, 3 + 1]
    assert packed.counts == [2, 1]


def test_padded_rows_are_as_wide_as_the_longest() -> None:
    padded = pack([_segment("a", [0, 1, 0, 1, 0, 0]), _segment("b", [0, 0, 1, 0], first_id=20)], packed=False)
    assert padded.token_ids.tolist() == [[10, 11, 12], [20, 21, 0]]
    assert (padded.position_ids, padded.bounds) == (None, None)
    assert padded.targets.tolist() == [11, 13, 22]
    assert padded.positions.tolist() == [0, 2, 3 + 1]


def test_a_length_is_the_sum_of_the_mask() -> None:
    mask = [0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1]
    packed = pack([_segment("a", mask)])
    assert (packed.counts, len(packed.targets), len(sampled_positions(_segment("a", mask)))) == ([9], 9, 9)


def test_pack_of_segments_without_sampled_tokens() -> None:
    packed = pack([_segment("a", [0, 0, 0])])
    assert packed.targets.tolist() == []
    assert packed.token_ids.shape == (1, 1)


def test_a_sampled_first_token_is_refused() -> None:
    with pytest.raises(ValueError, match="no context"):
        pack([_segment("a", [1, 1])])


def test_computed_length_ends_before_the_last_sampled_token() -> None:
    assert computed_length(_segment("a", [0, 1, 0, 1, 0])) == 3
    assert computed_length(_segment("a", [0, 0])) == 0


def test_signal_is_any_advantage_that_is_not_zero() -> None:
    assert has_signal(_segment("a", [0, 1]))
    assert not has_signal(_segment("a", [0, 1], advantage=0.0))
    assert has_signal(_segment("a", [0, 1]).model_copy(update={"advantages": [0.0, float("nan")]}))
    with pytest.raises(ValueError, match="assign credit"):
        has_signal(_segment("a", [0, 1], advantage=None))


def test_minibatches_deal_whole_rollouts_once_each_with_signal_in_all() -> None:
    segments = [
        _segment(f"r{i}", [0, 1], advantage=float(i % 3 == 0), index=index) for i in range(12) for index in range(2)
    ]
    parts = minibatches(segments, 4, seed=1, iteration=2, epoch=0)
    assert sorted(i for part in parts for i in part) == list(range(24))
    owners = [{segments[i].trajectory_id for i in part} for part in parts]
    assert sum(len(owner) for owner in owners) == 12, "a rollout was torn"
    assert [sum(has_signal(segments[i]) for i in part) for part in parts] == [2, 2, 2, 2]


def test_minibatches_are_a_function_of_seed_iteration_and_epoch() -> None:
    segments = [_segment(f"r{i}", [0, 1]) for i in range(20)]
    first = minibatches(segments, 4, seed=1, iteration=2, epoch=0)
    assert first == minibatches(segments, 4, seed=1, iteration=2, epoch=0)
    for other in ({"seed": 2}, {"iteration": 3}, {"epoch": 1}):
        assert first != minibatches(segments, 4, **{"seed": 1, "iteration": 2, "epoch": 0, **other})


def test_fewer_live_rollouts_than_minibatches_make_fewer_steps() -> None:
    segments = [_segment(f"r{i}", [0, 1], advantage=float(i < 2)) for i in range(8)]
    parts = minibatches(segments, 4, seed=0, iteration=0, epoch=0)
    assert len(parts) == 2
    assert sorted(i for part in parts for i in part) == list(range(8)), "idle tokens stay in the denominators"
    idle = [_segment(f"r{i}", [0, 1], advantage=0.0) for i in range(8)]
    assert minibatches(idle, 4, seed=0, iteration=0, epoch=0) == []


def test_micro_batches_stay_within_the_limit_and_hold_similar_lengths() -> None:
    lengths = [5, 100, 7, 50, 6, 49, 300]
    groups = micro_batches(lengths, 120, packed=False)
    assert sorted(i for group in groups for i in group) == list(range(7))
    assert groups[0] == [6], "longer than the limit: alone"
    assert all(len(group) * max(lengths[i] for i in group) <= 120 for group in groups[1:])
    assert groups == [[6], [1], [3, 5], [2, 4, 0]]
    assert micro_batches([], 120) == []
    assert micro_batches(lengths, 120) == [[6], [1], [3, 5, 2, 4, 0]], "without padding 117 tokens are one micro-batch"


def test_ranks_share_all_work_and_take_equally_many_turns() -> None:
    groups = [[0], [1], [2], [3], [4]]
    shares = [rank_share(groups, rank, 2) for rank in range(2)]
    assert [len(share) for share in shares] == [3, 3]
    assert Counter(i for share in shares for group in share for i in group) == Counter(range(5))
    assert shares[1][-1] == []
    assert rank_share(groups, 0, 1) == groups
