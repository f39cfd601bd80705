"""Settings of the vLLM engine: the servers to start, or the addresses of servers that run already."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from data_contracts.config import Config

OURS = (
    "--model", "--host", "--port", "--dtype", "--max-model-len", "--served-model-name", "--generation-config",
    "--logprobs-mode", "--enable-lora", "--max-loras", "--max-lora-rank",
)  # fmt: skip
"""Flags of the server that the other settings, or what the engine relies on, decide."""


class VllmConfig(Config):
    """Where vLLM samples. `endpoints` names servers that run already; without any, `servers` are started."""

    servers: int = Field(default=1, ge=1, description="vLLM servers to start on this machine")
    endpoints: tuple[str, ...] = Field(
        default=(), description='addresses of servers that run already, ["http://10.0.0.7:8000"]; none is started then'
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="what the servers compute in; half precision needs a larger probe_limit"
    )
    max_model_len: int | None = Field(default=None, ge=2, description="longest context; the model's own by default")
    max_loras: int = Field(default=4, ge=1, description="policy versions that one batch of a server may mix")
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] = Field(
        default=16, description="largest rank of an adapter: at least training.lora_r"
    )
    threads: int = Field(default=0, ge=0, description="CPU threads a server may use; 0 shares the cores among them")
    cpu_cache_gib: int = Field(default=1, ge=1, description="memory for keys and values of a server on a CPU")
    devices: tuple[str, ...] = Field(
        default=(), description='CUDA_VISIBLE_DEVICES of each server, ["0,1", "2,3"]; by default each sees all'
    )
    flags: tuple[str, ...] = Field(
        default=(), description='further flags of the vLLM server, ["--gpu-memory-utilization=0.8"]'
    )
    reload: bool = Field(
        default=False,
        description="for policies of full weights: try to put them in place, and restart the servers only where the "
        "probe does not prove it; opens the servers' developer endpoints",
    )
    start_seconds: float = Field(default=600.0, gt=0, description="patience with a server that is starting")
    turn_seconds: float = Field(default=600.0, gt=0, description="patience with one turn")
    probe_limit: float = Field(
        default=1e-3,
        gt=0,
        description="largest difference between a server's and the trainer's log-probabilities when a version is "
        "proven, nats: 1e-3 in float32, about 0.2 in half precision",
    )

    @field_validator("endpoints")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for endpoint in value:
            if not re.fullmatch(r"https?://[^/\s]+/?", endpoint):
                raise ValueError(
                    f"rollout.vllm.endpoints has {endpoint!r}: write scheme, host and port alone, "
                    'for example endpoints = ["http://10.0.0.7:8000"]'
                )
        found = tuple(endpoint.rstrip("/") for endpoint in value)
        if len(set(found)) < len(found):
            raise ValueError("rollout.vllm.endpoints names a server twice: write each once")
        return found

    @field_validator("flags")
    @classmethod
    def _leave_ours_alone(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for flag in value:
            if flag.partition("=")[0] in OURS:
                raise ValueError(f"rollout.vllm.flags has {flag}: leave it out, other keys of rollout.vllm decide it")
        return value

    @model_validator(mode="after")
    def _a_device_list_for_each(self) -> Self:
        if self.devices and len(self.devices) != self.servers:
            raise ValueError(
                f"rollout.vllm.devices names {len(self.devices)} sets of devices for {self.servers} servers: "
                "write one text for each server"
            )
        return self
