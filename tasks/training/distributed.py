"""The process group a DeepSpeed engine needs, started without a compiler.

one process -> an in-memory store, no port; torchrun's environment -> its rendezvous
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)

_SHM_OP = "deepspeed_shm_comm"
_IDLE = timedelta(days=30)


def start_process_group() -> None:
    """Join the process group named by RANK and WORLD_SIZE, or make one of this process alone; tell DeepSpeed."""
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    if dist.is_initialized():
        return
    world = int(os.environ.get("WORLD_SIZE", "1"))
    _skip_shared_memory_op(world)
    accelerator = get_accelerator()
    backend = "gloo" if accelerator.device_name() == "cpu" else accelerator.communication_backend_name()
    accelerator.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if world == 1:
        # DeepSpeed reads these when it logs and places; torch needs neither a port nor a file for one process
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    else:
        # ranks above 0 wait in a collective while the flow samples, however long that takes
        dist.init_process_group(backend, timeout=_IDLE)
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)


def _skip_shared_memory_op(world: int) -> None:
    """Keep DeepSpeed from compiling its shared-memory all-reduce where that is useless or impossible.

    DeepSpeed looks the op up in `deepspeed.ops.__compatible_ops__` and uses the process group where it is not there.
    The op serves `inference_all_reduce` among processes of one machine, which training never calls.
    """
    import deepspeed

    if world == 1:
        reason = "one process shares memory with nobody"
    elif shutil.which("c++") is None and shutil.which(os.environ.get("CXX", "c++")) is None:
        reason = "this machine has no C++ compiler"
    else:
        reason = "training does not call it"
    deepspeed.ops.__compatible_ops__[_SHM_OP] = False
    log.info("DeepSpeed's shared-memory op is not built: %s; collectives go through the process group", reason)


def rank() -> int:
    return dist.get_rank()


def world_size() -> int:
    return dist.get_world_size()


def total(values: Sequence[float]) -> list[float]:
    """Return the sums over all ranks (float64)."""
    from deepspeed.accelerator import get_accelerator

    sums = torch.tensor(list(values), dtype=torch.float64, device=get_accelerator().current_device_name())
    if dist.get_world_size() > 1:
        dist.all_reduce(sums)
    return sums.tolist()


def share(value: Any) -> Any:
    """Return rank 0's value on every rank."""
    box = [value]
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(box, src=0)
    return box[0]


def gather(value: Any) -> list[Any]:
    """Return every rank's value, in order of rank, on every rank."""
    values: list[Any] = [None] * dist.get_world_size()
    if dist.get_world_size() == 1:
        return [value]
    dist.all_gather_object(values, value)
    return values
