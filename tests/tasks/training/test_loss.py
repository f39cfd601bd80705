from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tasks.training.loss import clipped_tokens, policy_loss

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
