from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tasks.training.loss import base_kl, clipped_tokens, extreme_tokens, policy_loss

INF, NAN = math.inf, math.nan


def _row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def _at(ratio: float) -> float:
    return math.log(ratio) - 1.0


OLD = _row(-1.0, -1.0, -1.0, -1.0)


def test_hand_computed_loss_with_separate_clips() -> None:
    logprobs = _row(_at(1.5), _at(1.5), _at(0.5), _at(0.5))
    advantages = _row(2.0, -2.0, 2.0, -2.0)
    # 1.28*2 (clipped above), 1.5*-2 (free), .5*2 (free), .8*-2 (clipped below)
    loss = policy_loss(logprobs, OLD, advantages, torch.ones(1, 4), denominator=10.0, clip_low=0.2, clip_high=0.28)
    assert float(loss) == pytest.approx(-(2.56 - 3.0 + 1.0 - 1.6) / 10, abs=1e-12)
    clipped = clipped_tokens(logprobs, OLD, advantages, torch.ones(1, 4), clip_low=0.2, clip_high=0.28)
    assert clipped.tolist() == [[True, False, False, True]]


def test_gradient_is_the_ratio_weighted_policy_gradient_and_zero_where_clipped() -> None:
    logprobs = _row(_at(1.5), _at(1.5), _at(0.5), _at(0.5)).requires_grad_()
    policy_loss(
        logprobs, OLD, _row(2, -2, 2, -2), torch.ones(1, 4), denominator=4, weights=_row(1, 0.5, 1, 1)
    ).backward()
    assert logprobs.grad.tolist()[0] == pytest.approx([0.0, 1.5 * 2 * 0.5 / 4, -0.5 * 2 / 4, 0.0], abs=1e-12)


def test_weights_multiply_the_tokens_loss() -> None:
    loss = policy_loss(OLD, OLD, _row(1, 1, 1, 1), torch.ones(1, 4), denominator=4, weights=_row(0, 0.5, 1, 2))
    assert float(loss) == pytest.approx(-3.5 / 4)


def test_one_denominator_makes_micro_batches_add_up() -> None:
    torch.manual_seed(0)
    logprobs, old, advantages = torch.randn(3, 6, 9, dtype=torch.float64) * 0.3
    mask = torch.rand(6, 9) > 0.4
    denominator = float(mask.sum())
    whole = policy_loss(logprobs, old, advantages, mask, denominator=denominator)
    parts = [
        policy_loss(logprobs[rows], old[rows], advantages[rows], mask[rows], denominator=denominator)
        for rows in ([0], [1, 2, 3, 4], [5])
    ]
    assert float(whole) == pytest.approx(float(sum(parts)), abs=1e-12)
    naive = -sum(
        min(math.exp(new - o) * a, min(max(math.exp(new - o), 0.8), 1.2) * a)
        for new, o, a, m in zip(*(t.flatten().tolist() for t in (logprobs, old, advantages, mask)), strict=True)
        if m
    )
    assert float(whole) == pytest.approx(naive / denominator, abs=1e-12)


@pytest.mark.parametrize("poison", [NAN, INF, -INF, 1e30])
@pytest.mark.parametrize("name", ["logprobs", "old_logprobs", "advantages", "weights"])
def test_masked_values_reach_neither_value_nor_gradient(name: str, poison: float) -> None:
    mask = torch.tensor([[1, 0, 1, 0]])
    clean = {
        "logprobs": _row(-0.9, -1, -1.2, -1), "old_logprobs": OLD, "advantages": _row(1, 0, -1, 0),
        "weights": _row(1, 1, 0.5, 1),
    }  # fmt: skip
    results = []
    for values in (clean, {**clean, name: torch.where(mask.bool(), clean[name], poison)}):
        logprobs = values["logprobs"].clone().requires_grad_()
        loss = policy_loss(
            logprobs, values["old_logprobs"], values["advantages"], mask, denominator=2, weights=values["weights"]
        )
        loss.backward()
        results.append((loss.item(), logprobs.grad.tolist()))
    assert results[0] == results[1]
    assert results[0][1][0][1] == results[0][1][0][3] == 0.0


OBJECTIVES = ("clip", "gspo", "dppo")


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("size", [1000.0, -1000.0, INF, -INF])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_one_extreme_log_ratio_leaves_the_others_exact(objective, size: float, advantage: float) -> None:
    # the token itself adds nothing to value and gradient, and is counted; the denominator stays the step's
    rest = {"denominator": 7.0, "objective": objective, "ratio_penalty": 0.1}
    others = (_row(-0.9, -1.3, -1.0), _row(-1, -1, -1), _row(1, -1, 0.5))
    logprobs, old, advantages = (torch.cat([t, _row(v)], 1) for t, v in zip(others, (size, 0, advantage), strict=True))
    results = []
    for new, before, credit in ((others), (logprobs, old, advantages)):
        leaf = new.clone().requires_grad_()
        loss = policy_loss(leaf, before, credit, torch.ones_like(new), weights=torch.full_like(new, 0.5), **rest)
        kl = base_kl(leaf, before, torch.ones_like(new), denominator=7.0)
        (loss + 0.3 * kl).backward()
        results.append((loss.item(), kl.item(), leaf.grad[0, :3].tolist(), leaf.grad[0, 3:].tolist()))
    assert results[0][:3] == results[1][:3]
    assert results[1][3] == [0.0]
    assert extreme_tokens(logprobs, old, torch.ones(1, 4)).tolist() == [[False, False, False, True]]
    assert not extreme_tokens(logprobs, old, torch.tensor([[1, 1, 1, 0]])).any()


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("poison", [NAN, INF, 1e30])
def test_no_objective_and_no_kl_lets_masked_values_through(objective, poison: float) -> None:
    mask = torch.tensor([[1, 0, 1, 0]])
    logprobs, old, advantages = _row(-0.9, -1, -1.2, -1), OLD, _row(1, 5, -1, 5)
    results = []
    for fill in (0.0, poison):
        new, before, credit = (torch.where(mask.bool(), t, fill) for t in (logprobs, old, advantages))
        leaf = new.requires_grad_()
        loss = policy_loss(leaf, before, credit, mask, denominator=2, objective=objective, ratio_penalty=0.1)
        (loss + base_kl(leaf, before, mask, denominator=2)).backward()
        results.append((loss.item(), leaf.grad.tolist()))
        assert not clipped_tokens(leaf, before, credit, mask, objective=objective)[0, [1, 3]].any()
    assert results[0] == results[1]


def test_gspo_by_hand_has_one_ratio_a_row() -> None:
    logprobs = torch.tensor([[-0.5, -1.5, -0.9], [-1.0, -2.0, 9.0]], dtype=torch.float64).requires_grad_()
    old = torch.full((2, 3), -1.0, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    advantages = torch.tensor([[2.0] * 3, [-1.0, -1.0, 0.0]], dtype=torch.float64)
    ratios = [math.exp((0.5 - 0.5 + 0.1) / 3), math.exp(-0.5)]
    loss = policy_loss(logprobs, old, advantages, mask, denominator=5, objective="gspo", clip_low=0.9, clip_high=0.9)
    assert loss.item() == pytest.approx(-(3 * ratios[0] * 2.0 + 2 * ratios[1] * -1.0) / 5, abs=1e-12)
    loss.backward()
    # of s A for the whole row: d/dlogp_t = s A / |y| for each of its |y| tokens, here all |y| of them summed
    assert logprobs.grad.tolist() == [
        pytest.approx([-ratios[0] * 2.0 / 5] * 3),
        pytest.approx([ratios[1] / 5, ratios[1] / 5, 0.0]),
    ]
    clipped = clipped_tokens(logprobs, old, advantages, mask, objective="gspo", clip_low=0.3, clip_high=3e-4)
    assert clipped.tolist() == [[True] * 3, [True, True, False]]


def test_dppo_by_hand_bounds_the_change_of_probability() -> None:
    probabilities, before = (0.9, 0.9, 0.02, 0.1), (0.5, 0.5, 0.004, 0.6)
    logprobs, old = (_row(*(math.log(p) for p in row)) for row in (probabilities, before))
    logprobs.requires_grad_()
    advantages = _row(1, -1, 1, -1)
    # .4 up and wanted: held; .4 up, not wanted: free; five times likelier but by .016: free; .5 down, wanted: held
    held = clipped_tokens(logprobs, old, advantages, torch.ones(1, 4), objective="dppo", clip_low=0.2, clip_high=0.28)
    assert held.tolist() == [[True, False, False, True]]
    loss = policy_loss(
        logprobs, old, advantages, torch.ones(1, 4), denominator=4, objective="dppo", clip_low=0.2, clip_high=0.28,
        ratio_penalty=0.01,
    )  # fmt: skip
    logs = [math.log(p / q) for p, q in zip(probabilities, before, strict=True)]
    expected = -(-1.8 + 5.0) + 0.01 * sum(x * x for x in logs)
    assert loss.item() == pytest.approx(expected / 4, abs=1e-12)
    loss.backward()
    pulls = [0.02 * x for x in logs]
    assert logprobs.grad[0].tolist() == pytest.approx(
        [pulls[0] / 4, (1.8 + pulls[1]) / 4, (-5.0 + pulls[2]) / 4, pulls[3] / 4], abs=1e-12
    )


def test_an_unknown_objective_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="'gspo'"):
        policy_loss(OLD, OLD, OLD, torch.ones(1, 4), denominator=1, objective="ppo")  # type: ignore[arg-type]


def test_kl_to_the_base_is_that_of_the_sampled_tokens_alone() -> None:
    # mask 1 0 0 1: observations add neither value nor gradient, whatever they would cost
    logprobs = _row(-1.0, -9.0, -0.1, -2.0).requires_grad_()
    base = _row(-1.5, -0.1, -9.0, -1.0)
    kl = base_kl(logprobs, base, torch.tensor([[1, 0, 0, 1]]), denominator=2)
    expected = [math.exp(u) - u - 1 for u in (-0.5, 1.0)]
    assert kl.item() == pytest.approx(sum(expected) / 2, abs=1e-12)
    kl.backward()
    assert logprobs.grad[0].tolist() == pytest.approx([(1 - math.exp(-0.5)) / 2, 0, 0, (1 - math.exp(1.0)) / 2])
    with pytest.raises(ValueError, match="denominator"):
        base_kl(logprobs, base, torch.zeros(1, 4), denominator=0)


def test_an_unmasked_nan_is_not_hidden() -> None:
    assert math.isnan(float(policy_loss(_row(NAN, 0), _row(0, 0), _row(1, 1), torch.ones(1, 2), denominator=2)))


def test_a_step_without_tokens_has_no_loss() -> None:
    with pytest.raises(ValueError, match="denominator"):
        policy_loss(OLD, OLD, OLD, torch.zeros(1, 4), denominator=0)


LOGITS = st.lists(st.floats(-20, 20), min_size=2, max_size=12)


@settings(deadline=None)
@given(LOGITS, st.floats(0.1, 3), st.floats(0, 1, exclude_max=True))
def test_a_drawn_token_has_ratio_one_under_its_temperature(logits: list[float], heat: float, uniform: float) -> None:
    from ratchet_kernels import token_logprobs

    from tasks.rollout.choice import choose

    row = torch.tensor([logits])
    (token,), (rollout,) = choose(row, [heat], [1.0], [uniform])
    trainer = token_logprobs(row, torch.eye(len(logits)), torch.tensor([token]), temperature=heat).logprobs
    assert math.exp(float(trainer) - rollout) == pytest.approx(1, abs=1e-4)


def test_temperature_on_both_sides_gives_ratio_one() -> None:
    from ratchet_kernels import token_logprobs

    # logits 2 1 0 drawn at temperature .6: scored under .6 each ratio is 1, scored under 1 none is
    hidden, head, targets = torch.ones(3, 1), torch.tensor([[2.0], [1.0], [0.0]]), torch.arange(3)
    rollout = (head[:, 0].double() / 0.6).log_softmax(0)
    same = token_logprobs(hidden, head, targets, temperature=0.6).logprobs.double()
    assert (same - rollout).exp().tolist() == pytest.approx([1, 1, 1], abs=1e-6)
    other = token_logprobs(hidden, head, targets).logprobs.double()
    assert (other - rollout).abs().min() > 0.1
