from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from data_contracts.records import Segment
from tasks.training.mismatch import importance_weights, mismatch_report
from tasks.training.reports import PARTS, TURNS
from tasks.training.scores import Score, mismatch, of_version, write_scores

INF, NAN = math.inf, math.nan


def _diff(*values: float) -> tuple[Tensor, Tensor, Tensor]:
    """One row whose train - rollout is `values`, all sampled."""
    rollout = torch.full((1, len(values)), -2.0, dtype=torch.float64)
    return rollout + torch.tensor([values], dtype=torch.float64), rollout, torch.ones(1, len(values))


RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
ROW = _diff(*(math.log(r) for r in RATIOS))


@pytest.mark.parametrize(
    ("method", "low", "high", "expected"),
    [
        ("none", 0.5, 2.0, [1, 1, 1, 1, 1]),
        ("tis", 0.0, 2.0, [0.25, 0.5, 1, 2, 2]),
        ("tis", 0.4, 3.0, [0.4, 0.5, 1, 2, 3]),
        ("icepop", 0.4, 3.0, [0, 0.5, 1, 2, 0]),
        ("sequence_mask", 0.5, 2.0, [1, 1, 1, 1, 1]),
        ("sequence_mask", 1.5, 2.0, [0, 0, 0, 0, 0]),
    ],
)
def test_weights_by_hand(method, low: float, high: float, expected: list[float]) -> None:
    assert importance_weights(*ROW, method=method, low=low, high=high).tolist()[0] == pytest.approx(expected)


def test_a_long_row_is_judged_by_its_mean_not_its_product() -> None:
    # .012 a token is a product of 3.3 over 100 tokens and 160,000 over 1,000
    for length in (100, 1000):
        row = _diff(*[0.012] * length)
        weights = importance_weights(*row, method="sequence_mask", low=0.5, high=2.0)
        assert weights.sum() == length
        weights = importance_weights(*row, method="tis", low=0.5, high=2.0)
        assert weights.tolist()[0] == pytest.approx([math.exp(0.012)] * length)
    assert importance_weights(*_diff(*[0.8] * 10), method="sequence_mask", low=0.5, high=2.0).sum() == 0


def test_rows_are_judged_apart() -> None:
    train, rollout, mask = (torch.cat(parts) for parts in zip(_diff(0.0, 0.1), _diff(2.0, 2.0), strict=True))
    weights = importance_weights(train, rollout, mask, method="sequence_mask", low=0.5, high=2.0)
    assert weights.tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize("method", ["none", "tis", "icepop", "sequence_mask"])
@pytest.mark.parametrize("poison", [NAN, INF, -INF, 1e300])
def test_masked_values_do_not_count(method, poison: float) -> None:
    train, rollout, _ = _diff(0.1, 0.2, -0.3, 0.0)
    mask = torch.tensor([[1, 0, 1, 0]])
    clean = importance_weights(train, rollout, mask, method=method, low=0.0, high=2.0)
    report = mismatch_report(train, rollout, mask)
    for target in (train, rollout):
        target[0, 1] = poison
        assert torch.equal(importance_weights(train, rollout, mask, method=method, low=0.0, high=2.0), clean)
        assert mismatch_report(train, rollout, mask) == report
    assert clean[0, 1] == clean[0, 3] == 0
    assert report.tokens == 2


def test_weights_carry_no_gradient_and_unknown_methods_are_refused() -> None:
    train, rollout, mask = _diff(0.1)
    assert not importance_weights(train.requires_grad_(), rollout, mask, method="tis", low=0, high=2).requires_grad
    with pytest.raises(ValueError, match="icepop"):
        importance_weights(train, rollout, mask, method="best", low=0, high=2)  # type: ignore[arg-type]


def test_report_by_hand() -> None:
    d = [0.1, -0.2, 0.0, 0.5]
    report = mismatch_report(*_diff(*d))
    assert report.tokens == 4
    assert report.mean_abs_diff == pytest.approx(0.2)
    assert report.max_abs_diff == pytest.approx(0.5)
    assert report.mult_prob_error == pytest.approx(sum(math.exp(abs(x)) for x in d) / 4)
    assert report.kl_rollout_train == pytest.approx(sum(math.exp(x) - 1 - x for x in d) / 4)
    assert report.kl_train_rollout == pytest.approx(sum(math.exp(x) * x - math.exp(x) + 1 for x in d) / 4)
    assert report.by_position == pytest.approx((0.1, None, 0.2, None, 0.0, None, 0.5, None))
    assert report.max_after_gap == pytest.approx(0.1)


def test_kl_estimates_equal_the_exact_divergences() -> None:
    # three outcomes, each standing as often as the rollout draws it: the sample mean is the expectation
    rollout_p, train_p, counts = [0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [5, 3, 2]
    rollout = torch.tensor([[math.log(p) for p, n in zip(rollout_p, counts, strict=True) for _ in range(n)]])
    train = torch.tensor([[math.log(p) for p, n in zip(train_p, counts, strict=True) for _ in range(n)]])
    report = mismatch_report(train, rollout, torch.ones(1, 10))
    forward = sum(p * math.log(p / q) for p, q in zip(rollout_p, train_p, strict=True))
    backward = sum(q * math.log(q / p) for p, q in zip(rollout_p, train_p, strict=True))
    assert report.kl_rollout_train == pytest.approx(forward, abs=1e-6)
    assert report.kl_train_rollout == pytest.approx(backward, abs=1e-6)


def test_a_shift_by_one_position_is_seen() -> None:
    torch.manual_seed(0)
    mask = torch.tensor([[0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1]])
    exact = -torch.rand(1, 12, dtype=torch.float64) * 4
    noise = 5e-7 * torch.randn(1, 12, dtype=torch.float64)
    aligned = mismatch_report(exact + noise, exact, mask)
    assert aligned.max_abs_diff < 1e-4
    assert aligned.max_after_gap < 1e-4
    shifted = mismatch_report(exact.roll(1, dims=1), exact, mask)
    assert shifted.max_abs_diff > 1
    assert shifted.mult_prob_error > 2


def test_a_fault_after_a_tool_result_alone_is_seen() -> None:
    mask = torch.tensor([[0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1]])
    rollout = torch.zeros(1, 11)
    train = rollout.clone()
    train[0, 6] = 0.3  # the first sampled token after the observation
    report = mismatch_report(train, rollout, mask)
    assert report.max_after_gap == pytest.approx(0.3)
    assert max(p for p in report.by_position if p is not None) == pytest.approx(0.3)


def test_no_tokens_is_no_evidence() -> None:
    report = mismatch_report(*_diff(0.1)[:2], torch.zeros(1, 1))
    assert report.tokens == 0
    assert report.mean_abs_diff is report.max_abs_diff is report.kl_rollout_train is None


def _segment(logprobs: list[float], numbers: list[int] | None = None) -> Segment:
    """A prompt of one token, then sampled tokens with these log-probabilities."""
    return Segment(
        trajectory_id="r", token_ids=[0] * (1 + len(logprobs)), loss_mask=[0] + [1] * len(logprobs),
        rollout_logprobs=[0.0, *logprobs], turn_index=[0] * (1 + len(logprobs)), policy_numbers=numbers,
    )  # fmt: skip


def test_tokens_of_another_version_are_stale_and_no_mismatch() -> None:
    carried, whole = _segment([-1.0, -1.0, -2.0], [-1, 6, 6, 7]), _segment([-3.0])
    scores = [Score([-9.0, -1.5, -2.25], [0.0] * 3), Score([-3.5], [0.0])]
    now, before = (mismatch([carried, whole], scores, number) for number in (7, 6))
    assert (now.tokens, now.mean_abs_diff) == (2, pytest.approx((0.25 + 0.5) / 2))
    assert (before.tokens, before.max_abs_diff) == (3, 8.0)
    assert mismatch([carried, whole], scores).tokens == 4


def test_staleness_is_measured_apart_from_the_numerical_mismatch(tmp_path: Path) -> None:
    carried, whole = _segment([-1.0, -1.0, -2.0], [-1, 6, 6, 7]), _segment([-3.0], [-1, 7])
    segments = [carried, whole.model_copy(update={"trajectory_id": "s"})]
    assert of_version(segments, 6) == segments[:1]
    path = tmp_path / "scores-policy-00006.parquet"
    write_scores(path, segments[:1], [Score([-1.25, -1.0, -7.0], [0.0] * 3)])
    current = [Score([-2.25, -0.5, -2.0], [0.0] * 3), Score([-3.5], [0.0])]
    report = mismatch(segments, current, 7, {6: path})
    # under its own version each token is off by .25, 0 | 0 and .5; the policy has moved by 1 and .5 since
    assert (report.tokens, report.mean_abs_diff) == (4, pytest.approx(0.75 / 4))
    assert report.max_abs_diff == 0.5
    assert (report.staleness.tokens, report.staleness.mean_abs_diff) == (2, pytest.approx(0.75))
    assert report.staleness.max_abs_diff == 1.0
    assert mismatch(segments[1:], current[1:], 7).staleness is None
    figures = report.figures()
    assert (figures["stale.mean_abs_diff"], figures["stale.tokens"]) == (pytest.approx(0.75), 2)
    assert "stale.turn.0" not in figures


def test_the_report_by_turn_holds_every_token_once_and_shows_growth() -> None:
    d = [0.1, 0.1, 0.2, 0.4, 0.6, 0.8]
    turns = torch.tensor([[0, 0, 1, 1, 3, 40]])
    report = mismatch_report(*_diff(*d), turns)
    assert report.by_turn[:4] == pytest.approx((0.1, 0.3, None, 0.6))
    assert len(report.by_turn) == TURNS
    assert report.by_turn[-1] == pytest.approx(0.8)
    assert report.by_turn[4:-1] == (None,) * (TURNS - 5)
    assert report.growth is None, "no token fell into the last part"
    rising = mismatch_report(*_diff(*[0.01 * (t + 1) for t in range(2 * PARTS)]), torch.zeros(1, 2 * PARTS).long())
    assert rising.growth == pytest.approx(0.155 / 0.015)
    assert rising.figures()["position.8"] == pytest.approx(0.155)


@pytest.mark.parametrize("method", ["tis", "icepop", "sequence_mask"])
@pytest.mark.parametrize("size", [1000.0, -1000.0, INF])
def test_one_extreme_token_weighs_nothing_and_decides_about_no_other(method, size: float) -> None:
    d = [0.1, -0.2, size, 0.3]
    clean = importance_weights(*_diff(0.1, -0.2, 0.3), method=method, low=0.5, high=2.0)
    weights = importance_weights(*_diff(*d), method=method, low=0.5, high=2.0)
    assert weights[0, 2] == 0
    assert torch.equal(weights[0, [0, 1, 3]], clean[0])


def test_figures_that_are_not_finite_are_told_as_none() -> None:
    report = mismatch_report(*_diff(0.0, 1000.0))
    figures = report.figures()
    assert (figures["max_abs_diff"], figures["mult_prob_error"], figures["kl_rollout_train"]) == (1000.0, None, None)
