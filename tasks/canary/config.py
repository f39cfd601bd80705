"""Settings of the canary: how traffic is shared, what is watched, and how sure the flow must be."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from data_contracts.config import Config
from tasks.canary.gateway_config import GatewayConfig


class Metric(Config):
    """One figure per session, and how much worse the candidate's mean may be."""

    name: str = Field(description="success, errors, tool_errors, latency (seconds a turn) or tokens (sampled)")
    better: Literal["higher", "lower"] = Field(description="which direction is an improvement")
    critical: bool = Field(default=False, description="a FAIL rolls back, and only a PASS promotes")
    margin: float = Field(default=0.0, ge=0, description="how much worse is still accepted; 0 asks for better")
    relative: bool = Field(default=False, description="`margin` is a share of the champion's mean, not a difference")
    scale: float = Field(
        default=0.0, ge=0, description="a floor on the spread: about one session's odd value; 1 for rates and counts"
    )


DEFAULT_METRICS: tuple[Metric, ...] = (
    Metric(name="success", better="higher", critical=True, margin=0.05, scale=1.0),
    Metric(name="errors", better="lower", critical=True, margin=0.1, scale=1.0),
    Metric(name="tool_errors", better="lower", margin=0.5, scale=1.0),
    Metric(name="latency", better="lower", margin=0.5, relative=True),
    Metric(name="tokens", better="lower", margin=0.5, relative=True),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in DEFAULT_METRICS}
KNOWN: frozenset[str] = frozenset(METRICS)


class CanaryConfig(Config):
    """How a candidate is tried on live sessions before it becomes the champion."""

    gateway: GatewayConfig = Field(default=GatewayConfig(), description="the server the sessions go through")
    shares: tuple[float, ...] = Field(default=(0.25, 0.5), description="the candidate's share of new sessions")
    sessions_per_stage: int = Field(default=20, ge=2, description="least sessions of each arm in a stage to go on")
    minimum_sessions: int = Field(default=20, ge=10, description="least sessions of each arm for any verdict")
    max_sessions: int = Field(default=400, ge=1, description="sessions after which an undecided canary holds")
    alpha: float = Field(default=0.05, gt=0, lt=0.5, description="chance of any false alarm, however often one looks")
    tuned_sessions: int = Field(default=100, ge=2, description="sessions an arm at which the interval is tightest")
    metrics: tuple[Metric, ...] = Field(default=DEFAULT_METRICS, description="what is watched")
    concurrency: int = Field(default=32, ge=1, description="live sessions in flight")
    look_every: int = Field(default=32, ge=1, description="sessions of a wave: the decision is looked at after each")
    temperature: float = Field(default=1.0, ge=0, description="sampling temperature of the live sessions; 0 is greedy")
    turn_tokens: int = Field(default=64, ge=1, description="most tokens of one model message, as in training")
    retries: int = Field(default=2, ge=0, description="times a refused or lost request is sent again")
    seed: int = Field(default=0, ge=0, description="order of the problems, and sampling")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if not self.shares or any(not 0 < share < 1 for share in self.shares):
            raise ValueError("shares lie strictly between 0 and 1: write for example [0.25, 0.5]")
        if list(self.shares) != sorted(set(self.shares)):
            raise ValueError("shares rise from stage to stage: write for example [0.25, 0.5]")
        names = [metric.name for metric in self.metrics]
        if len(set(names)) != len(names):
            raise ValueError(f"a metric is named twice in {names}: keep one")
        if unknown := set(names) - KNOWN:
            raise ValueError(f"no metric {', '.join(sorted(unknown))}: write one of {', '.join(sorted(KNOWN))}")
        if not any(metric.critical for metric in self.metrics):
            raise ValueError("no metric is critical, so nothing could promote: set critical = true on success")
        return self
