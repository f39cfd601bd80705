from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_contracts.records import Segment, Turn
from tasks.credit.assign import assign, by_turn, credit_report
from tasks.credit.config import CreditConfig
from tasks.credit.outcome import rewards, rollout_advantages
from tasks.reward.signals import Signals

PLAIN = CreditConfig(scale="none")


def segment(trajectory_id: str, mask: list[int], index: int = 0) -> Segment:
    size = len(mask)
    return Segment(
        trajectory_id=trajectory_id,
        index=index,
        token_ids=[1] * size,
        loss_mask=mask,
        rollout_logprobs=[-1.0 * m for m in mask],
        turn_index=[0] * size,
    )


def test_more_segments_are_not_more_votes(make_trajectory):
    group = [make_trajectory(rollout=i, outcome=i in (0, 2)) for i in range(4)]
    segments = [segment("p-0", [0, 1]), segment("p-0", [1, 1], 1), segment("p-1", [1]), segment("p-2", [0, 0, 1])]
    credited = assign(group, segments, PLAIN)
    assert [s.advantages for s in credited] == [[0, 0.5], [0.5, 0.5], [-0.5], [0, 0, 0.5]]
    assert [s.token_ids for s in credited] == [s.token_ids for s in segments]


def turns(count: int) -> tuple[Turn, ...]:
    return tuple(
        Turn(index=i, completion="", completion_tokens=1, prompt_tokens=1, finish_reason="stop", policy_digest="d")
        for i in range(count)
    )


def test_more_turns_are_not_more_votes(make_trajectory):
    group = [make_trajectory(rollout=i, outcome=i in (0, 2), turns=turns(2 - i % 2)) for i in range(4)]
    segments = [segment(t.id, [0, 1], index) for t in group for index in range(len(t.turns))]
    expected = {"p-0": 0.5, "p-1": -0.5, "p-2": 0.5, "p-3": -0.5}
    assert rollout_advantages(group, PLAIN, rewards(group)) == expected
    assert [s.advantages for s in assign(group, segments, PLAIN)] == [[0, expected[s.trajectory_id]] for s in segments]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=2, max_size=6))
def test_a_baseline_is_the_mean_over_rollouts_however_long_each_is(make_trajectory, rollouts):
    group = [make_trajectory(rollout=i, outcome=won, turns=turns(n)) for i, (won, n) in enumerate(rollouts)]
    segments = [segment(t.id, [0, 1, 1], index) for t in group for index in range(len(t.turns))]
    mean = sum(won for won, _ in rollouts) / len(rollouts)
    expected = {t.id: won - mean for t, (won, _) in zip(group, rollouts, strict=True)}
    for credited in assign(group, segments, PLAIN):
        assert credited.advantages == pytest.approx([0, *[expected[credited.trajectory_id]] * 2], abs=1e-12)


def test_unscorable_rollouts_get_nothing_and_move_no_baseline(make_trajectory):
    lost = make_trajectory(rollout=3, outcome=None, status="sandbox_error")
    group = [make_trajectory(rollout=i, outcome=i != 1) for i in range(3)] + [lost]
    advantages = rollout_advantages(group, PLAIN, rewards(group))
    assert advantages == pytest.approx({"p-0": 1 / 3, "p-1": -2 / 3, "p-2": 1 / 3, "p-3": 0.0})
    assert assign(group, [segment("p-3", [1, 1])], PLAIN)[0].advantages == [0, 0]


def test_the_weighed_proxy_counts_beside_the_outcome(make_trajectory):
    group = [make_trajectory(rollout=i, outcome=i == 0) for i in range(2)]
    said = Signals(proxies={"p-0": 0.25, "p-1": 0.75})
    assert rewards(group, {"outcome": 1.0, "proxy": 0.4}, said) == pytest.approx([1.1, 0.3])
    assert rewards(group, {"outcome": 1.0}, said) == pytest.approx([1, 0]), "switched off: as if it was not there"


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.booleans(), st.floats(-9, 9))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_group_of_equal_outcomes_carries_no_signal_whatever_else_is_said(make_trajectory, said, solved, weight):
    group = [make_trajectory(rollout=i, outcome=solved, turns=turns(2)) for i in range(len(said))]
    potentials = {"cost": {t.id: (0.0, -value, -1.0) for t, value in zip(group, said, strict=True)}}
    signals = Signals(proxies={t.id: value for t, value in zip(group, said, strict=True)}, potentials=potentials)
    weights = {"outcome": 1.0, "proxy": weight, "cost": weight}
    credit = by_turn(group, CreditConfig(), weights=weights, signals=signals)
    assert all(part.tolist() == [0, 0] for part in credit.values())
    report = credit_report(group, CreditConfig(), weights=weights, signals=signals)
    assert (report.groups_with_variance, report.mean_abs_advantage) == (0, 0)


def test_a_proxy_that_was_silent_on_one_rollout_says_nothing_of_its_group(make_trajectory):
    group = [make_trajectory(rollout=i, outcome=i == 0) for i in range(3)]
    weights = {"outcome": 1.0, "proxy": 1.0}
    assert rewards(group, weights, Signals(proxies={"p-0": 0.5, "p-1": 0.5}, abstained=1)).tolist() == [1, 0, 0]


def test_the_shuffle_control_keeps_the_advantages_but_not_their_owners(make_trajectory):
    batch = [make_trajectory(f"p{g}", i, outcome=i == g % 3) for g in range(16) for i in range(8)]
    true = rollout_advantages(batch, PLAIN, rewards(batch))
    config = CreditConfig(scale="none", shuffle_across_rollouts=True)

    def means(batch):
        return {name: float(part.mean()) for name, part in by_turn(batch, config).items()}

    shuffled = means(batch)
    assert sorted(shuffled.values()) == sorted(true.values())
    assert shuffled == means(batch)
    agreement = sum(true[key] * shuffled[key] for key in true) / sum(value**2 for value in true.values())
    assert abs(agreement) < 0.35
    assert means([t.model_copy(update={"iteration": 1}) for t in batch]) != shuffled


def test_the_report_counts_what_can_be_learnt_from(make_trajectory):
    batch = [make_trajectory("mixed", i, outcome=i == 0) for i in range(4)]
    batch += [make_trajectory("easy", i, outcome=True) for i in range(4)]
    batch += [make_trajectory("hard", i, outcome=False) for i in range(3)]
    batch += [make_trajectory("lost", 0, outcome=None, status="engine_error")]
    report = credit_report(batch, PLAIN)
    assert (report.groups, report.groups_with_variance, report.share_with_variance) == (4, 1, 0.25)
    assert (report.groups_all_passed, report.groups_all_failed, report.unscorable) == (1, 1, 1)
    assert report.mean_reward == pytest.approx(5 / 11)
    assert report.mean_abs_advantage == pytest.approx((0.75 + 3 * 0.25) / 12)


def test_an_empty_batch_has_no_figures():
    report = credit_report([], PLAIN)
    assert (report.share_with_variance, report.mean_reward, report.mean_abs_advantage) == (None, None, 0)


def test_strange_tables_are_refused(make_trajectory):
    with pytest.raises(ValueError, match="unknown trajectories"):
        assign([make_trajectory()], [segment("other", [1])], PLAIN)
    with pytest.raises(ValueError, match="twice"):
        assign([make_trajectory(), make_trajectory()], [], PLAIN)
    with pytest.raises(ValueError, match="reward stage"):
        assign([make_trajectory(rewards={})], [], PLAIN)
