"""Bits: the same from run to run, and a row's the same whatever rows come with it."""

from __future__ import annotations

import pytest
import torch
from ratchet_kernels import token_logprobs
from ratchet_kernels.torch_path import COLUMNS, ROWS
from torch import Tensor

REAL_TILES = ROWS, COLUMNS


def _run(hidden: Tensor, head: Tensor, targets: Tensor, temperature: Tensor, backend: str) -> tuple[Tensor, ...]:
    """Both outputs and both gradients."""
    hidden, head = hidden.detach().requires_grad_(), head.detach().requires_grad_()
    out = token_logprobs(hidden, head, targets, temperature=temperature, backend=backend)
    (out.logprobs * 1.3 - out.entropy * 0.4).sum().backward()
    return out.logprobs.detach(), out.entropy.detach(), hidden.grad, head.grad


def _batch(n: int, h: int, v: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden, head = torch.randn(n, h, generator=generator), torch.randn(v, h, generator=generator)
    return hidden, head, torch.randint(0, v, (n,), generator=generator), torch.rand(n, generator=generator) + 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_from_run_to_run(backend, device, dtype) -> None:
    hidden, head, targets, temperature = _batch(37, 24, 50)
    batch = tuple(t.to(device) for t in (hidden.to(dtype), head.to(dtype), targets, temperature))
    first, again = _run(*batch, backend), _run(*(t.clone() for t in batch), backend)
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))


@pytest.mark.parametrize("shape", [(5, 11), (7, 8), (31, 3), (24, 50)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_alone_and_anywhere_in_any_batch(backend, device, dtype, shape) -> None:
    """Shapes of odd width are among those where a plain matrix product depends on the row's place and alignment."""
    _, head, _, _ = _batch(1, *shape)
    row, _, target, _ = _batch(1, *shape, seed=1)
    head = head.to(device, dtype)
    alone = _run(row.to(device, dtype), head, target.to(device), torch.tensor([0.7], device=device), backend)
    for n, place, offset in ((2, 1, 0), (7, 3, 1), (16, 15, 3), (40, 21, 1)):
        others, _, targets, temperature = _batch(n, *shape, seed=n)
        others[place], targets[place], temperature[place] = row[0], target[0], 0.7
        targets[place + 1 :: 2] = -100
        storage = torch.zeros(n * shape[0] + offset, device=device, dtype=dtype)
        hidden = storage[offset:].view(n, shape[0])  # starts at no round address
        hidden.copy_(others)
        among = _run(hidden, head, targets.to(device), temperature.to(device), backend)
        for ours, expected in zip(among[:3], alone[:3], strict=True):
            assert torch.equal(ours[place], expected[0])


@pytest.mark.parametrize("shape", [(5, 13), (64, 1009), (128, 768), (33, 5000)])
def test_a_row_in_tiles_of_the_real_size(monkeypatch, shape) -> None:
    for name, value in zip(("ROWS", "COLUMNS"), REAL_TILES, strict=True):
        monkeypatch.setattr(f"ratchet_kernels.torch_path.{name}", value)
    batch = _batch(300, *shape)
    together = _run(*batch, "torch")
    for part in (slice(0, 1), slice(127, 130), slice(41, 299)):
        hidden, head, targets, temperature = batch
        some = _run(hidden[part], head, targets[part], temperature[part], "torch")
        for ours, expected in zip(some[:3], together[:3], strict=True):
            assert torch.equal(ours, expected[part])


def test_the_size_of_the_workspace_changes_no_bit(backend, device, monkeypatch) -> None:
    if backend != "triton":
        pytest.skip("only the triton path has a workspace")
    batch = tuple(t.to(device) for t in _batch(20, 24, 70))
    narrow = _run(*batch, backend)  # one block of 16 columns at a time
    monkeypatch.setattr("ratchet_kernels.triton_path.WORKSPACE_BYTES", 1 << 20)
    assert all(torch.equal(*pair) for pair in zip(narrow, _run(*batch, backend), strict=True))
