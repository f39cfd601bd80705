"""Indices beyond 32 bits and grids beyond 65,535, in memory that is reserved and hardly touched."""

from __future__ import annotations

import pytest
import torch
from ratchet_kernels import token_logprobs, torch_path
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class _Tensors(TorchDispatchMode):
    """Remembers the most elements any operation gave."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return out


def _far_apart(rows: int, width: int, seed: int) -> Tensor:
    """Return random bfloat16 [rows, width] whose last row starts beyond element 2^31 of its storage."""
    stride = 2**31 // (rows - 1) + 64
    values = torch.empty(stride * (rows - 1) + width, dtype=torch.bfloat16).as_strided((rows, width), (stride, 1))
    values.copy_(torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)))
    assert values.stride(0) * (rows - 1) > 2**31
    return values


@pytest.mark.parametrize("far", ["hidden", "head"])
def test_offsets_beyond_32_bits(backend, reference, far: str) -> None:
    hidden, head = _far_apart(9, 12, 0), _far_apart(20, 12, 1)
    if far == "hidden":
        head = head.contiguous()
    else:
        hidden = hidden.contiguous()
    targets = torch.arange(9) * 2
    near_h, near_w = (t.double().requires_grad_() for t in (hidden, head))
    expected = reference(near_h, near_w, targets)
    expected.logprobs.sum().backward()
    hidden.requires_grad_()
    head.requires_grad_()
    out = token_logprobs(hidden, head, targets, backend=backend)
    out.logprobs.sum().backward()
    torch.testing.assert_close(out.logprobs.double(), expected.logprobs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(hidden.grad.double(), near_h.grad, atol=3e-2, rtol=1e-2)
    torch.testing.assert_close(head.grad.double(), near_w.grad, atol=3e-2, rtol=1e-2)


def test_the_whole_logits_are_never_in_memory(monkeypatch) -> None:
    monkeypatch.setattr(torch_path, "ROWS", 128)
    monkeypatch.setattr(torch_path, "COLUMNS", 2048)
    n, v = 1000, 20_000
    hidden = torch.randn(n, 4, requires_grad=True)
    head = torch.randn(v, 4, requires_grad=True)
    with _Tensors() as watch:
        out = token_logprobs(hidden, head, torch.arange(n))
        (out.logprobs.sum() + out.entropy.sum()).backward()
    assert 0 < watch.elements <= 2 * 128 * 2048 < n * v / 30


@pytest.mark.slow
def test_more_logits_than_32_bits_count(monkeypatch, reference) -> None:
    monkeypatch.setattr(torch_path, "ROWS", 128)
    monkeypatch.setattr(torch_path, "COLUMNS", 2048)
    n, v = 70_000, 31_000
    assert n * v > 2**31
    hidden = torch.randn(n, 1, generator=torch.Generator().manual_seed(0))
    head = torch.randn(v, 1, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(n) % v
    out = token_logprobs(hidden, head, targets)
    some = torch.tensor([0, 1, n // 2, n - 1])
    expected = reference(hidden[some], head, targets[some])
    torch.testing.assert_close(out.logprobs[some].double(), expected.logprobs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out.entropy[some].double(), expected.entropy, atol=1e-5, rtol=1e-5)
