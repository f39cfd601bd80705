"""vLLM servers of our own: started side by side, each with its log, ended when this process is gone.

VllmConfig + base folder -> `python -m vllm...api_server` under a supervisor, one a server -> [Endpoint]
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from data_contracts.errors import UserError
from tasks.rollout.engine import EngineError
from tasks.rollout.vllm_config import VllmConfig
from tasks.supervision import HOST, Plan, Service, free_port, log_end, supervised

MODULE = "vllm.entrypoints.openai.api_server"
QUIET = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


class Endpoint(NamedTuple):
    """A server's address; its log, where we started it."""

    url: str
    log: Path | None = None


def require_vllm(config: VllmConfig) -> None:
    """Servers of our own need the package: a UserError that says how to get it."""
    if not config.endpoints and importlib.util.find_spec("vllm") is None:
        raise UserError(
            'rollout.engine = "vllm" needs the package vllm: give `make vllm` (CPU) or install the extra `vllm` (GPU), '
            'name running servers in rollout.vllm.endpoints, or set rollout.engine = "slots".'
        )


def check_vllm(config: VllmConfig, lora_r: int) -> None:
    """A UserError for a missing package, and for adapters of a rank that the servers would refuse."""
    require_vllm(config)
    if not config.endpoints and lora_r > config.max_lora_rank:
        raise UserError(
            f"training.lora_r = {lora_r} is above rollout.vllm.max_lora_rank = {config.max_lora_rank}, so the servers "
            "would refuse the adapters: raise rollout.vllm.max_lora_rank."
        )


@contextmanager
def vllm_servers(config: VllmConfig, base: str, logs: Path, first_port: int = 0) -> Iterator[list[Service]]:
    """Start the servers of a recipe for the base model in folder `base`; they come up meanwhile: `wait_up`.

    Server i writes to `<logs>/vllm-<i>.log` and listens on `first_port` + i, or on any free port of loopback.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(supervised(plan)) for plan in vllm_plans(config, base, logs, first_port)]


def vllm_plans(config: VllmConfig, base: str, logs: Path, first_port: int = 0) -> list[Plan]:
    """How the servers of a recipe are started, as `vllm_servers` does."""
    require_vllm(config)
    plans = []
    for number in range(config.servers):
        port = first_port + number if first_port else free_port()
        command = [sys.executable, "-m", MODULE, *arguments(config, base, port)]
        url, variables = f"http://{HOST}:{port}", environment(config, number)
        plans.append(Plan(f"vllm-{number}", url, command, logs.resolve(), variables))
    return plans


class Servers:
    """Servers of our own that can be started anew over other weights; `close` ends them."""

    def __init__(self, config: VllmConfig, base: str, logs: Path) -> None:
        self._config, self._base, self._logs = config, base, logs
        self._stack = ExitStack()

    def start(self, weights: Path | None = None) -> list[Endpoint]:
        """End those that run, start others for a model folder (None: the base's), and wait until they are up.

        The logs of servers that hold `weights` are in a folder of its name. Raises EngineError as `wait_up`.
        """
        self.close()
        logs = self._logs if weights is None else self._logs / weights.name
        services = self._stack.enter_context(vllm_servers(self._config, str(weights or self._base), logs))
        return wait_up(services, self._config.start_seconds)

    def close(self) -> None:
        self._stack.close()


def wait_up(services: list[Service], seconds: float, stop: threading.Event | None = None) -> list[Endpoint]:
    """Wait until all answer, or `stop` is set.

    Raises EngineError with the end of its log when one ends by itself or takes too long.
    """
    deadline, stop = time.monotonic() + seconds, stop or threading.Event()
    for service in services:
        while not stop.is_set() and not service.plan.up():
            if not service.alive or time.monotonic() > deadline:
                code = service.process.returncode
                happened = f"was not up after {seconds:g} s" if service.alive else f"ended with exit code {code}"
                raise EngineError(f"the server {service.plan.name} {happened}; {log_end(service.plan.log)}")
            stop.wait(0.2)
    return [Endpoint(service.plan.url, service.plan.log) for service in services]


def arguments(config: VllmConfig, base: str, port: int) -> list[str]:
    """The server's command line: log-probabilities of the distribution drawn from, adapters loaded as versions come."""
    longest = [f"--max-model-len={config.max_model_len}"] if config.max_model_len else []
    return [
        f"--model={Path(base).resolve()}",
        "--served-model-name=base",
        f"--host={HOST}",
        f"--port={port}",
        f"--dtype={config.dtype}",
        *longest,
        "--generation-config=vllm",
        "--logprobs-mode=processed_logprobs",
        "--enable-prompt-tokens-details",
        "--enable-lora",
        f"--max-loras={config.max_loras}",
        f"--max-lora-rank={config.max_lora_rank}",
        "--disable-uvicorn-access-log",
        *_whole_prefills(),
        *config.flags,
    ]


def _whole_prefills() -> list[str]:
    """On a CPU no prompt is prefilled in parts: vLLM 0.32 ends at the first part of a request that has a seed."""
    import torch

    return [] if torch.cuda.is_available() else ["--no-enable-chunked-prefill"]


def environment(config: VllmConfig, number: int) -> dict[str, str]:
    """What server `number` has in its environment beside ours: no telemetry, its share of the machine."""
    threads = config.threads or max(1, len(os.sched_getaffinity(0)) // config.servers)
    devices = {"CUDA_VISIBLE_DEVICES": config.devices[number]} if config.devices else {}
    developer = {"VLLM_SERVER_DEV_MODE": "1"} if config.reload else {}
    return {
        **QUIET,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(config.cpu_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # bound, two servers would share one core and leave the others idle
        "OMP_NUM_THREADS": str(threads),
        **devices,
        **developer,
    }
