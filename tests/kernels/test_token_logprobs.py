from __future__ import annotations

import math

import pytest
import torch
from ratchet_kernels import TokenLogprobs, token_logprobs
from ratchet_kernels.logprobs import chunk_rows
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def _inputs(n: int = 7, h: int = 5, v: int = 11, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, h, generator=generator)
    head = torch.randn(v, h, generator=generator)
    return hidden, head, torch.randint(0, v, (n,), generator=generator)


def _reference(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float | Tensor = 1.0) -> TokenLogprobs:
    """The definition, in float64, with whole logits."""
    scale = torch.as_tensor(temperature, dtype=torch.float64).reshape(-1, 1)
    logprobs = (hidden.double() @ head.double().T / scale).log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return TokenLogprobs(logprobs.gather(1, targets[:, None])[:, 0], entropy)


def _gradients(function, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float | Tensor):
    """Gradients of an uneven mixture of both outputs."""
    hidden, head = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    out = function(hidden, head, targets, temperature=temperature)
    mix = torch.linspace(-1, 2, len(targets), dtype=out.logprobs.dtype)
    ((out.logprobs * mix).sum() + (out.entropy * mix.flip(0) * 0.7).sum()).backward()
    return hidden.grad, head.grad


class _LargestTensor(TorchDispatchMode):
    """Remembers the most elements any operation gave."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return out


@pytest.mark.parametrize("temperature", [1.0, 0.6, torch.tensor([0.5, 1.0, 2.0, 0.1, 1.3, 1.0, 5.0])])
@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_values_and_gradients_equal_the_float64_definition(monkeypatch, temperature, rows: int) -> None:
    monkeypatch.setattr("ratchet_kernels.logprobs.chunk_rows", lambda vocabulary: rows)
    inputs = _inputs()
    out, expected = token_logprobs(*inputs, temperature=temperature), _reference(*inputs, temperature)
    assert out.logprobs.dtype == out.entropy.dtype == torch.float32
    torch.testing.assert_close(out.logprobs.double(), expected.logprobs, atol=3e-6, rtol=1e-6)
    torch.testing.assert_close(out.entropy.double(), expected.entropy, atol=3e-6, rtol=1e-6)
    for grad, reference in zip(
        _gradients(token_logprobs, *inputs, temperature),
        _gradients(_reference, *(t.double() if t.is_floating_point() else t for t in inputs), temperature),
        strict=True,
    ):
        torch.testing.assert_close(grad.double(), reference, atol=2e-5, rtol=1e-5)


def test_hand_computed_values() -> None:
    # logits 2 1 0 at temperature 1: log-sum-exp 2.40760596
    out = token_logprobs(torch.tensor([[1.0]]), torch.tensor([[2.0], [1.0], [0.0]]), torch.tensor([1]))
    assert out.logprobs.item() == pytest.approx(-1.40760596, abs=1e-6)
    p = [math.exp(z - 2.40760596) for z in (2, 1, 0)]
    assert out.entropy.item() == pytest.approx(-sum(q * math.log(q) for q in p), abs=1e-6)
    uniform = token_logprobs(torch.zeros(1, 4), torch.randn(8, 4), torch.tensor([3]))
    assert uniform.entropy.item() == pytest.approx(math.log(8), abs=1e-6)


@pytest.mark.parametrize("n", [0, 1])
def test_no_row_and_one_row(n: int) -> None:
    hidden, head, targets = _inputs(n=n)
    out = token_logprobs(hidden.requires_grad_(), head.requires_grad_(), targets)
    assert out.logprobs.shape == out.entropy.shape == (n,)
    (out.logprobs.sum() + out.entropy.sum()).backward()
    assert hidden.grad.shape == hidden.shape
    assert bool((head.grad != 0).any()) == (n == 1)


def test_extreme_logits_stay_finite() -> None:
    hidden = torch.tensor([[300.0], [-300.0], [0.0]], requires_grad=True)
    head = torch.tensor([[1.0], [0.5], [-1.0]])
    out = token_logprobs(hidden, head, torch.tensor([0, 0, 2]))
    assert out.logprobs.tolist() == pytest.approx([0.0, -600.0, -math.log(3)], abs=1e-4)
    assert out.entropy.tolist() == pytest.approx([0.0, 0.0, math.log(3)], abs=1e-6)
    (out.logprobs.sum() + out.entropy.sum()).backward()
    assert torch.isfinite(hidden.grad).all()


def test_bfloat16_inputs_accumulate_in_float32() -> None:
    hidden, head, targets = _inputs(n=32, h=64, v=50)
    narrow = hidden.bfloat16(), head.bfloat16()
    out, expected = token_logprobs(*narrow, targets), _reference(*narrow, targets)
    torch.testing.assert_close(out.logprobs.double(), expected.logprobs, atol=2e-5, rtol=1e-6)


def test_the_whole_logits_are_never_in_memory() -> None:
    n, v = 3000, 40_000
    assert n > 4 * chunk_rows(v)
    hidden, head, targets = _inputs(n=n, h=4, v=v)
    hidden.requires_grad_()
    with _LargestTensor() as watch:
        out = token_logprobs(hidden, head.requires_grad_(), targets)
        (out.logprobs.sum() + out.entropy.sum()).backward()
    assert 0 < watch.elements <= chunk_rows(v) * v < n * v / 4


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, head, targets = _inputs()
    token_logprobs(hidden.requires_grad_(), head, targets).logprobs.sum().backward()
    assert head.grad is None
    assert hidden.grad is not None


@pytest.mark.parametrize("target", [-1, 11, -100])
def test_a_target_outside_the_head_is_an_index_error(target: int) -> None:
    hidden, head, targets = _inputs()
    targets[3] = target
    with pytest.raises(IndexError, match="0 to 10"):
        token_logprobs(hidden, head, targets)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, torch.tensor([1.0] * 6 + [0.0])])
def test_a_temperature_that_is_not_positive_is_refused(temperature) -> None:
    with pytest.raises(ValueError, match="positive"):
        token_logprobs(*_inputs(), temperature=temperature)


def test_shapes_and_backends_that_do_not_fit_are_refused() -> None:
    hidden, head, targets = _inputs()
    with pytest.raises(ValueError, match="do not fit"):
        token_logprobs(hidden, head[:, :4], targets)
    with pytest.raises(ValueError, match="do not fit"):
        token_logprobs(hidden, head, targets[:3])
    with pytest.raises(ValueError, match="one value a row"):
        token_logprobs(hidden, head, targets, temperature=torch.ones(3))
    with pytest.raises(ValueError, match="only the torch path exists in this version"):
        token_logprobs(hidden, head, targets, backend="triton")
    with pytest.raises(ValueError, match="unknown"):
        token_logprobs(hidden, head, targets, backend="numpy")  # type: ignore[arg-type]


def test_auto_is_the_torch_path() -> None:
    inputs = _inputs()
    assert torch.equal(token_logprobs(*inputs).logprobs, token_logprobs(*inputs, backend="torch").logprobs)
