"""Settings of the rollout stage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from data_contracts.config import Config
from tasks.rollout.context.config import ContextConfig
from tasks.rollout.vllm_config import VllmConfig


class RolloutConfig(Config):
    """How rollouts for training are sampled, how many at a time, and when their batch may train."""

    engine: Literal["slots", "vllm"] = Field(
        default="slots", description="what samples: slots, in this process; vllm, servers (`make vllm` installs it)"
    )
    vllm: VllmConfig = Field(default=VllmConfig(), description='the vLLM servers, for engine = "vllm"')
    rollouts_per_problem: int = Field(default=8, ge=2, description="rollouts of a problem: the size of its group")
    temperature: float = Field(default=1.0, gt=0, description="sampling temperature; the trainer scores under it too")
    top_p: float = Field(default=1.0, gt=0, le=1, description="nucleus of training rollouts: 1, the whole distribution")
    max_turn_tokens: int = Field(default=64, ge=1, description="tokens one model message may have")
    tool_format: Literal["hermes", "llama3"] = Field(
        default="hermes",
        description='how calls are written: hermes, JSON in <tool_call> tags; llama3, {"name", "parameters"} alone',
    )
    context: ContextConfig = Field(default=ContextConfig(), description="what of a session the model is shown")
    capacity: int = Field(default=128, ge=1, description="sessions in flight, and slots of the in-process engine")
    tool_workers: int = Field(default=2, ge=1, description="tool calls running at the same time")
    tool_latency_polls: int = Field(
        default=4,
        ge=0,
        description="tools' results join the engine together, at every so many of its steps, so that runs repeat to "
        "the bit; 0: each when it is there, quicker with slow tools; with vLLM always so",
    )
    max_staleness: int = Field(
        default=0,
        ge=0,
        description="iterations that rollouts may be ahead of training: 0, none; 1 and more, sessions of later "
        "iterations fill free places and go on while the policy is trained, each turn under the newest version",
    )
    budget_slack: float | None = Field(
        default=None,
        ge=1,
        description="tokens of a rollout are at most so many times those of the horizon's longest success in the last "
        "`budget_window` iterations; left out: the problem's limit alone",
    )
    budget_window: int = Field(default=3, ge=1, description="iterations that budgets are learned from")
    retries: int = Field(default=2, ge=0, description="times an infrastructure failure is tried again")
    require_isolation: bool = Field(
        default=False, description="refuse to run what the agent writes where bubblewrap does not start"
    )
    minimum_contract_share: float = Field(
        default=0.98, ge=0, le=1, description="gate: least share of rows that the contract accepts"
    )
    maximum_infrastructure_share: float = Field(
        default=0.05, ge=0, le=1, description="gate: largest share of rollouts lost to infrastructure failures"
    )
    maximum_mean_mismatch: float = Field(
        default=1e-3, gt=0, description="gate: largest mean of |trainer - rollout| log-probabilities, nats"
    )
    maximum_token_mismatch: float = Field(
        default=0.05, gt=0, description="gate: largest |trainer - rollout| log-probability of any token, nats"
    )

    @property
    def joins_when_ready(self) -> bool:
        """Whether a tool's result joins when it is there, not at a step that the jobs alone decide."""
        return self.engine == "vllm" or self.tool_latency_polls == 0

    @field_validator("top_p")
    @classmethod
    def _whole_distribution(cls, value: float) -> float:
        if value < 1:
            raise ValueError(
                f"rollout.top_p = {value:g} would sample from a part of the distribution that the trainer does not "
                "know, so its ratios would be wrong: write rollout.top_p = 1.0 and lower rollout.temperature instead"
            )
        return value
