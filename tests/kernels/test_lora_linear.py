from __future__ import annotations

import pytest
import torch
from ratchet_kernels import lora_linear
from torch import Tensor


def _inputs(dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"x": (2, 3, 6), "weight": (5, 6), "bias": (5,), "a": (4, 6), "b": (5, 4)}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def _reference(x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    out = x @ (weight + scaling * b @ a).T
    return out if bias is None else out + bias


@pytest.mark.parametrize("with_bias", [True, False])
def test_values_and_gradients_equal_the_float64_definition(with_bias: bool) -> None:
    results = []
    for function, dtype in ((lora_linear, torch.float32), (_reference, torch.float64)):
        given = _inputs(dtype)
        if not with_bias:
            given["bias"] = None
        for name in ("x", "a", "b"):
            given[name].requires_grad_()
        out = function(**given, scaling=1.7)
        assert out.shape == (2, 3, 5)
        (out * torch.linspace(-1, 1, 30, dtype=dtype).view(2, 3, 5)).sum().backward()
        results.append([out.detach(), *(given[name].grad for name in ("x", "a", "b"))])
    for value, expected in zip(*results, strict=True):
        torch.testing.assert_close(value.double(), expected, atol=1e-5, rtol=1e-5)


def test_gradient_by_finite_differences() -> None:
    given = _inputs(torch.float64)
    for name in ("x", "a", "b"):
        given[name].requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, a, b: lora_linear(x, given["weight"], given["bias"], a, b, 0.5), (given["x"], given["a"], given["b"])
    )


def test_an_adapter_that_is_zero_changes_nothing() -> None:
    given = _inputs(torch.float32)
    out = lora_linear(given["x"], given["weight"], given["bias"], given["a"], torch.zeros(5, 4), 2.0)
    assert torch.equal(out, torch.nn.functional.linear(given["x"], given["weight"], given["bias"]))


def test_a_base_that_is_not_frozen_is_refused() -> None:
    given = _inputs(torch.float32)
    given["weight"].requires_grad_()
    with pytest.raises(ValueError, match="frozen"):
        lora_linear(**given, scaling=1.0)
