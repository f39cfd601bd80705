"""Forward + backward of token log-probabilities: time and peak memory, as ratios to the bare matrix products.

    python tests/benchmarks/kernel.py [--rows N] [--hidden H] [--vocabulary V] [--threads 1] [--repeats 3]

On a GPU the default is N=8,192 H=4,096 V=151,936 in bfloat16 with Liger besides (pip install liger-kernel); on a CPU it
is N=1,024 H=512 V=8,192 in float32. Memory is what lies above the inputs at the worst moment, the gradients among it.
Ours gives log-probability and entropy a row; only log-probabilities are asked for backward, as the others give no more.
"""

from __future__ import annotations

import argparse
import importlib.util
import threading
import time
from collections.abc import Callable

import psutil
import torch
from ratchet_kernels import token_logprobs
from torch import Tensor
from torch.nn.functional import cross_entropy, linear_cross_entropy

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def ours(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    return -token_logprobs(hidden, head, targets).logprobs.sum()


def plain(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Whole logits, in float32 from the products on."""
    return cross_entropy((hidden @ head.T).float(), targets, reduction="sum")


def torch_fused(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()
    return linear_cross_entropy(hidden, head, targets, reduction="sum", options=options)


def liger(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return LigerFusedLinearCrossEntropyLoss(reduction="sum")(head, hidden, targets)


def bare(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """The three products that nobody can do without."""
    return (hidden @ head.T).sum()


def contenders(device: str) -> dict[str, Loss]:
    found: dict[str, Loss] = {"bare": bare, "ours": ours, "plain": plain, "linear_cross_entropy": torch_fused}
    if device == "cuda" and importlib.util.find_spec("liger_kernel"):
        found["liger"] = liger
    else:
        print("without Liger: it needs a GPU and `pip install liger-kernel`")
    return found


def step(loss: Loss, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    hidden, head, _ = inputs
    hidden.grad = head.grad = None
    loss(*inputs).backward()


def seconds(loss: Loss, inputs: tuple[Tensor, Tensor, Tensor], repeats: int) -> float:
    """The least CPU time of the repeats, on a GPU the least time by the clock."""
    on_gpu, times = inputs[0].is_cuda, []
    for _ in range(repeats + 1):  # the first compiles and fills caches
        start = time.perf_counter() if on_gpu else time.process_time()
        step(loss, inputs)
        if on_gpu:
            torch.cuda.synchronize()
        times.append((time.perf_counter() if on_gpu else time.process_time()) - start)
    return min(times[1:])


def peak_bytes(loss: Loss, inputs: tuple[Tensor, Tensor, Tensor]) -> int:
    """On a CPU the process's resident memory, looked at every millisecond."""
    inputs[0].grad = inputs[1].grad = None
    if inputs[0].is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(loss, inputs)
        return torch.cuda.max_memory_allocated() - before
    process, done = psutil.Process(), threading.Event()
    before, seen = process.memory_info().rss, [0]

    def watch() -> None:
        while not done.wait(0.001):
            seen.append(process.memory_info().rss - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    step(loss, inputs)
    done.set()
    watcher.join()
    return max(seen)


def make(rows: int, hidden: int, vocabulary: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    states = torch.randn(rows, hidden, device=device).to(dtype).requires_grad_()
    head = (torch.randn(vocabulary, hidden, device=device) / hidden**0.5).to(dtype).requires_grad_()
    return states, head, torch.randint(0, vocabulary, (rows,), device=device)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = (8192, 4096, 151_936) if device == "cuda" else (1024, 512, 8192)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in zip(("rows", "hidden", "vocabulary", "threads", "repeats"), (*sizes, 1, 3), strict=True):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    inputs = make(options.rows, options.hidden, options.vocabulary, device)
    print(f"{device}, N={options.rows} H={options.hidden} V={options.vocabulary} {inputs[0].dtype}")
    weight = inputs[1].numel() * 4 / 2**20
    print(f"one float32 weight gradient: {weight:.0f} MiB\n{'':22}{'ms':>10}{'x bare':>8}{'MiB':>8}")
    unit = 0.0
    for name, loss in contenders(device).items():
        memory, took = peak_bytes(loss, inputs) / 2**20, seconds(loss, inputs, options.repeats)
        unit = unit or took
        print(f"{name:22}{took * 1e3:10.1f}{took / unit:8.2f}{memory:8.0f}", flush=True)


if __name__ == "__main__":
    main()
