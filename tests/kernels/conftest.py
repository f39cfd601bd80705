"""Both paths of `token_logprobs`, in tiles so small that small shapes cross several of them."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from ratchet_kernels import TokenLogprobs, torch_path
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
BACKENDS = ["torch", *(["triton"] if INTERPRETED or torch.cuda.is_available() else [])]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """A path of the kernel; triton where it can run (`test_triton.py` runs these tests with its interpreter)."""
    return request.param


@pytest.fixture
def device(backend: str) -> str:
    return "cuda" if backend == "triton" and not INTERPRETED else "cpu"


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 16 rows and columns; one block a workspace."""
    monkeypatch.setattr(torch_path, "ROWS", 16)
    monkeypatch.setattr(torch_path, "COLUMNS", 16)
    if "triton" in BACKENDS:
        from ratchet_kernels import triton_path

        tiles = triton_path.Tiles(rows=16, columns=16, width=16, stripe=32, warps=4, stages=2)
        for name in ("NARROW", "MIDDLE", "WIDE"):
            monkeypatch.setattr(triton_path, name, tiles)
        monkeypatch.setattr(triton_path, "WORKSPACE_BYTES", 0)


@pytest.fixture
def reference() -> Callable[..., TokenLogprobs]:
    return _reference


def _reference(
    hidden: Tensor, head: Tensor, targets: Tensor, *, temperature: float | Tensor = 1.0, ignore_index: int = -100
) -> TokenLogprobs:
    """The definition, in float64, with whole logits."""
    kept = targets != ignore_index
    scale = torch.as_tensor(temperature, dtype=torch.float64, device=hidden.device).reshape(-1, 1)
    logprobs = (hidden.double() @ head.double().T / scale).log_softmax(-1)
    terms = torch.where(logprobs == -torch.inf, 0.0, logprobs.exp() * logprobs)
    chosen = logprobs.gather(1, torch.where(kept, targets, 0)[:, None])[:, 0]
    return TokenLogprobs(torch.where(kept, chosen, 0.0), torch.where(kept, -terms.sum(-1), 0.0))
