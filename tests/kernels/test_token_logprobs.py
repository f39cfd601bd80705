"""Values, gradients and edge cases of `token_logprobs`, on both paths, against the definition in float64."""

from __future__ import annotations

import math

import pytest
import torch
from ratchet_kernels import token_logprobs
from torch import Tensor

PER_TOKEN = torch.tensor([0.5, 1.0, 2.0, 0.1, 1.3, 1.0, 5.0])


@pytest.fixture
def inputs(device):
    """hidden[N,H], head[V,H], targets[N]."""

    def make(n: int = 7, h: int = 5, v: int = 11, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        hidden, head = torch.randn(n, h, generator=generator), torch.randn(v, h, generator=generator)
        targets = torch.randint(0, v, (n,), generator=generator)
        return hidden.to(device), head.to(device), targets.to(device)

    return make


@pytest.fixture
def agree(backend, reference):
    """Compare values and gradients of an uneven mixture of both outputs with the reference's; return ours."""

    def check(hidden, head, targets, *, atol=3e-6, rtol=1e-5, mix=(1.0, 0.7), **options):
        results = []
        for function, kwargs in ((token_logprobs, {"backend": backend}), (reference, {})):
            exact = function is reference
            h, w = ((t.double() if exact else t).detach().requires_grad_() for t in (hidden, head))
            out = function(h, w, targets, **options, **kwargs)
            weights = torch.linspace(-1, 2, len(targets), dtype=out.logprobs.dtype, device=h.device)
            loss = (out.logprobs * weights).sum() * mix[0] + (out.entropy * weights.flip(0)).sum() * mix[1]
            loss.backward()
            results.append((*out, h.grad, w.grad))
        for ours, expected in zip(*results, strict=True):
            torch.testing.assert_close(ours.double(), expected, atol=atol, rtol=rtol)
        return results[0]

    return check


@pytest.mark.parametrize("temperature", [1.0, 0.6, PER_TOKEN])
def test_values_and_gradients_equal_the_float64_definition(inputs, agree, device, temperature) -> None:
    temperature = temperature.to(device) if isinstance(temperature, Tensor) else temperature
    out = agree(*inputs(), temperature=temperature, atol=2e-5)
    assert out[0].dtype == out[1].dtype == torch.float32


@pytest.mark.parametrize("v", [2, 16, 17, 37, 101])  # tiles have 16 columns; 37 and 101 are prime
@pytest.mark.parametrize("n", [1, 16, 35])
def test_vocabularies_and_rows_that_do_not_fill_their_tiles(inputs, agree, n: int, v: int) -> None:
    agree(*inputs(n=n, v=v, h=19), atol=2e-5)


def test_padding_neither_wins_nor_leaks_where_every_logit_is_very_negative(inputs, agree, device) -> None:
    hidden, head, targets = inputs(v=37, h=4)
    hidden[:, -1], head[:, -1] = 1.0, -1e3  # padding read as 0 would take all the probability
    out = agree(hidden, head, targets, atol=3e-3, rtol=1e-3)
    assert (out[1] > 0.1).any()


def test_targets_in_the_last_partial_tile(inputs, agree) -> None:
    hidden, head, _ = inputs(n=3, v=37)
    agree(hidden, head, torch.tensor([32, 36, 35], device=hidden.device), atol=1e-5)


def test_hand_computed_values(backend, device) -> None:
    # logits 2 1 0 at temperature 1: log-sum-exp 2.40760596
    hidden, head = torch.tensor([[1.0]], device=device), torch.tensor([[2.0], [1.0], [0.0]], device=device)
    out = token_logprobs(hidden, head, torch.tensor([1], device=device), backend=backend)
    assert out.logprobs.item() == pytest.approx(-1.40760596, abs=1e-6)
    p = [math.exp(z - 2.40760596) for z in (2, 1, 0)]
    assert out.entropy.item() == pytest.approx(-sum(q * math.log(q) for q in p), abs=1e-6)


def test_no_row_at_all(inputs, backend) -> None:
    hidden, head, targets = inputs(n=0)
    out = token_logprobs(hidden.requires_grad_(), head.requires_grad_(), targets, backend=backend)
    assert out.logprobs.shape == out.entropy.shape == (0,)
    (out.logprobs.sum() + out.entropy.sum()).backward()
    assert hidden.grad.shape == (0, 5)
    assert head.grad.shape == head.shape
    assert not head.grad.any()


def test_masked_rows_are_zero_without_gradient_whatever_they_hold(inputs, agree, backend) -> None:
    hidden, head, targets = inputs(n=40, v=37)
    targets[::3] = -100
    _, _, grad, _ = agree(hidden, head, targets, atol=1e-5)
    assert not grad[::3].any()
    hidden[::3] = math.nan
    out = token_logprobs(hidden, head.requires_grad_(), targets, backend=backend)
    (out.logprobs + out.entropy).sum().backward()
    assert torch.isfinite(out.logprobs).all()
    assert torch.isfinite(head.grad).all()


def test_another_mask_value(inputs, agree) -> None:
    hidden, head, targets = inputs()
    targets[2] = -1
    agree(hidden, head, targets, ignore_index=-1, atol=1e-5)


def test_all_rows_masked(inputs, backend) -> None:
    hidden, head, targets = inputs()
    out = token_logprobs(hidden.requires_grad_(), head.requires_grad_(), targets.fill_(-100), backend=backend)
    assert out.logprobs.tolist() == out.entropy.tolist() == [0.0] * 7
    (out.logprobs.sum() + out.entropy.sum()).backward()
    assert not hidden.grad.any()
    assert not head.grad.any()


def test_logits_of_minus_infinity_are_tokens_of_probability_zero(backend, device, reference) -> None:
    # float32 overflows to -inf where float64 gives -1e60: 16 of 37 tokens, the whole first tile among them
    hidden = torch.tensor([[1e30, 0.5], [1e30, -2.0]], device=device)
    head = torch.randn(37, 2, generator=torch.Generator().manual_seed(0)).to(device)
    head[:, 0] = 0.0
    head[:16, 0] = -1e30
    targets = torch.tensor([20, 36], device=device)
    grads = []
    for function, kwargs in ((token_logprobs, {"backend": backend}), (reference, {})):
        exact = function is reference
        h, w = ((t.double() if exact else t).detach().requires_grad_() for t in (hidden, head))
        out = function(h, w, targets, **kwargs)
        (out.logprobs * 2 + out.entropy).sum().backward()
        grads.append((*out, h.grad, w.grad[16:, 1]))
        assert not w.grad[:16].any()
    for ours, expected in zip(*grads, strict=True):
        torch.testing.assert_close(ours.double(), expected, atol=1e-5, rtol=1e-5)
    impossible = token_logprobs(hidden, head, torch.tensor([3, 20], device=device), backend=backend)
    assert impossible.logprobs[0].item() == -math.inf
    assert torch.equal(impossible.entropy.double().round(decimals=5), grads[1][1].detach().round(decimals=5))


@pytest.mark.parametrize("offset", [-8192.0, 8192.0])
def test_a_large_common_offset_changes_nothing(inputs, agree, offset: float) -> None:
    hidden, head, targets = inputs(v=37)
    hidden[:, :-1] = (hidden[:, :-1] * 4).round() / 4  # so that float32 holds the logits exactly
    head[:, :-1] = (head[:, :-1] * 16).round() / 16
    hidden[:, -1], head[:, -1] = 1.0, 0.0
    plain = agree(hidden, head, targets, atol=1e-5)
    head[:, -1] = offset
    moved = agree(hidden, head, targets, atol=1e-2)
    for ours, expected in zip(moved[:2], plain[:2], strict=True):
        torch.testing.assert_close(ours, expected, atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(moved[3], plain[3], atol=2e-6, rtol=1e-6)


def test_extreme_logits_stay_finite(backend, device) -> None:
    hidden = torch.tensor([[300.0], [-300.0], [0.0]], device=device, requires_grad=True)
    head = torch.tensor([[1.0], [0.5], [-1.0]], device=device)
    out = token_logprobs(hidden, head, torch.tensor([0, 0, 2], device=device), backend=backend)
    assert out.logprobs.tolist() == pytest.approx([0.0, -600.0, -math.log(3)], abs=1e-4)
    assert out.entropy.tolist() == pytest.approx([0.0, 0.0, math.log(3)], abs=1e-6)
    (out.logprobs.sum() + out.entropy.sum()).backward()
    assert torch.isfinite(hidden.grad).all()


def test_nan_is_not_hidden_and_stays_in_its_row(inputs, backend) -> None:
    hidden, head, targets = inputs(v=37)
    clean = token_logprobs(hidden, head, targets, backend=backend)
    hidden[2, 0] = math.nan
    out = token_logprobs(hidden, head, targets, backend=backend)
    for ours, expected in zip(out, clean, strict=True):
        assert ours.isnan().nonzero().flatten().tolist() == [2]
        expected[2] = ours[2] = 0.0
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("mix", [(1.0, 0.0), (0.0, 1.0)])
def test_an_unused_output_asks_for_no_gradient(inputs, backend, reference, mix) -> None:
    hidden, head, targets = inputs(v=37)
    used = 0 if mix[0] else 1
    h, w = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    token_logprobs(h, w, targets, backend=backend)[used].sum().backward()
    exact_h, exact_w = hidden.double().requires_grad_(), head.double().requires_grad_()
    reference(exact_h, exact_w, targets)[used].sum().backward()
    torch.testing.assert_close(h.grad.double(), exact_h.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(w.grad.double(), exact_w.grad, atol=1e-5, rtol=1e-5)


def test_a_frozen_head_gets_no_gradient_and_costs_none(inputs, backend, monkeypatch) -> None:
    hidden, head, targets = inputs(v=37)
    asked = _spy_on_backward(monkeypatch, backend)
    token_logprobs(hidden.requires_grad_(), head, targets, backend=backend).logprobs.sum().backward()
    assert head.grad is None
    assert asked == [(True, False, "Tensor")]
    expected = hidden.grad.clone()
    hidden.grad = None
    token_logprobs(hidden, head.requires_grad_(), targets, backend=backend).logprobs.sum().backward()
    assert torch.equal(hidden.grad, expected)
    token_logprobs(hidden.detach(), head, targets, backend=backend).logprobs.sum().backward()
    assert asked[1:] == [(True, True, "Tensor"), (False, True, "NoneType")]


def _spy_on_backward(monkeypatch, backend: str) -> list[tuple[bool, bool, str]]:
    """What each call asked for, and what kind its gradient by hidden was."""
    module = pytest.importorskip(f"ratchet_kernels.{backend}_path")
    asked, run = [], module.backward

    def backward(*args, need_hidden, need_head):
        out = run(*args, need_hidden=need_hidden, need_head=need_head)
        asked.append((need_hidden, need_head, type(out[0]).__name__))
        assert (out[1] is None) != need_head
        return out

    monkeypatch.setattr(module, "backward", backward)
    return asked


def test_inputs_that_are_not_contiguous(inputs, agree, device) -> None:
    hidden, head, targets = inputs(n=20, h=9, v=37)
    wide = torch.randn(40, 18, generator=torch.Generator().manual_seed(1)).to(device)
    wide[::2, ::2] = hidden
    every_other = torch.stack((targets, targets + 7), dim=1)[:, 0]
    assert not wide[::2, ::2].is_contiguous()
    agree(wide[::2, ::2], head.T.contiguous().T, every_other, atol=2e-5)


def test_upstream_gradients_weigh_each_row(inputs, backend) -> None:
    hidden, head, targets = inputs(v=37)
    weights = torch.tensor([0.0, 1.0, 0.0, -3.0, 0.0, 0.0, 1e-3], device=hidden.device)
    hidden.requires_grad_()
    token_logprobs(hidden, head, targets, backend=backend).logprobs.backward(weights)
    weighed, hidden.grad = hidden.grad, None
    token_logprobs(hidden, head, targets, backend=backend).logprobs.sum().backward()
    torch.testing.assert_close(weighed, hidden.grad * weights[:, None], atol=1e-7, rtol=1e-6)


def test_bfloat16_inputs_accumulate_in_float32(inputs, backend, reference) -> None:
    hidden, head, targets = inputs(n=40, h=64, v=50)
    hidden, head = (hidden / 4).bfloat16(), head.bfloat16()
    results = []
    for function, kwargs in ((token_logprobs, {"backend": backend}), (reference, {})):
        exact = function is reference
        h, w = ((t.double() if exact else t).detach().requires_grad_() for t in (hidden, head))
        out = function(h, w, targets, **kwargs)
        (out.logprobs + out.entropy * 0.5).sum().backward()
        results.append((*out, h.grad, w.grad))
    for ours, expected, atol in zip(*results, (2e-5, 2e-5, 2e-2, 2e-2), strict=True):
        torch.testing.assert_close(ours.double(), expected, atol=atol, rtol=1e-2 if atol > 1e-3 else 1e-6)
    assert results[0][2].dtype == results[0][3].dtype == torch.bfloat16


@pytest.mark.parametrize("target", [-1, 11, -101])
def test_a_target_outside_the_head_is_an_index_error(inputs, backend, target: int) -> None:
    hidden, head, targets = inputs()
    targets[3] = target
    with pytest.raises(IndexError, match=r"0 to 10 \(a row to skip: -100\)"):
        token_logprobs(hidden, head, targets, backend=backend)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, torch.tensor([1.0] * 6 + [0.0])])
def test_a_temperature_that_is_not_positive_is_refused(inputs, temperature) -> None:
    with pytest.raises(ValueError, match="positive"):
        token_logprobs(*inputs(), temperature=temperature)


def test_shapes_and_backends_that_do_not_fit_are_refused(inputs, monkeypatch) -> None:
    hidden, head, targets = (t.cpu() for t in inputs())
    with pytest.raises(ValueError, match="do not fit"):
        token_logprobs(hidden, head[:, :4], targets)
    with pytest.raises(ValueError, match="do not fit"):
        token_logprobs(hidden, head, targets[:3])
    with pytest.raises(ValueError, match="one value a row"):
        token_logprobs(hidden, head, targets, temperature=torch.ones(3))
    with pytest.raises(ValueError, match="unknown"):
        token_logprobs(hidden, head, targets, backend="numpy")  # type: ignore[arg-type]
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"needs the package triton|cannot run on cpu"):
        token_logprobs(hidden, head, targets, backend="triton")


def test_auto_is_the_torch_path_on_a_cpu(inputs) -> None:
    hidden, head, targets = (t.cpu() for t in inputs())
    auto = token_logprobs(hidden, head, targets)
    assert torch.equal(auto.logprobs, token_logprobs(hidden, head, targets, backend="torch").logprobs)
