"""Settings of the canary: its stages, what is watched, and how sure the flow must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from data_contracts.config import Config
from tasks.canary.gateway_config import GatewayConfig

T = TypeVar("T")
Criticality = Literal["promotes", "guards", "shown"]


class Metric(Config):
    """One figure per session, and how much worse the candidate's mean may be."""

    name: str = Field(
        description="success, errors, reward, turns, tokens (sampled), latency (seconds a turn), latency_p95 (share of "
        "sessions slower than the champion's 95th percentile), tool_errors, refusals or cost"
    )
    better: Literal["higher", "lower"] = Field(description="which direction is an improvement")
    criticality: Criticality = Field(
        default="shown",
        description="promotes: a FAIL rolls back and only a PASS promotes; guards: a FAIL rolls back, and without data "
        "nothing promotes; shown: decides nothing",
    )
    margin: float = Field(default=0.0, ge=0, description="least effect that counts: how much worse is still accepted")
    relative: bool = Field(default=False, description="`margin` is a share of the champion's mean, not a difference")
    scale: float = Field(
        default=0.0, ge=0, description="a floor on the spread: about one session's odd value; 1 for rates and counts"
    )
    minimum: int | None = Field(
        default=None, ge=2, description="least sessions of each arm; default: the canary's minimum_sessions"
    )


class Stage(Config):
    """A step of the candidate's way into traffic, and what it takes to leave it."""

    share: float = Field(default=1.0, gt=0, le=1, description="of the new sessions that the candidate answers")
    shadow: bool = Field(
        default=False, description="the candidate answers copies of requests that nobody sees; the share is not used"
    )
    bake_seconds: float = Field(default=0.0, ge=0, description="least time in this stage")
    sessions: int = Field(default=20, ge=2, description="least sessions of each arm that begin in this stage")


HELDOUT_STAGES: tuple[Stage, ...] = (Stage(share=0.25), Stage(share=0.5))
LIVE_STAGES: tuple[Stage, ...] = (
    Stage(shadow=True, bake_seconds=600, sessions=50),
    Stage(share=0.01, bake_seconds=600, sessions=20),
    Stage(share=0.05, bake_seconds=1800, sessions=50),
    Stage(share=0.25, bake_seconds=1800, sessions=100),
    Stage(share=0.5, bake_seconds=3600, sessions=200),
    Stage(share=1.0, bake_seconds=3600, sessions=200),
)
HELDOUT_METRICS: tuple[Metric, ...] = (
    Metric(name="success", better="higher", criticality="promotes", margin=0.05, scale=1.0),
    Metric(name="errors", better="lower", criticality="promotes", margin=0.1, scale=1.0),
    Metric(name="tool_errors", better="lower", margin=0.5, scale=1.0),
    Metric(name="latency", better="lower", margin=0.5, relative=True),
    Metric(name="tokens", better="lower", margin=0.5, relative=True),
)
LIVE_METRICS: tuple[Metric, ...] = (
    Metric(name="success", better="higher", criticality="promotes", margin=0.02, scale=1.0),
    Metric(name="errors", better="lower", criticality="promotes", margin=0.02, scale=1.0),
    Metric(name="tool_errors", better="lower", criticality="guards", margin=0.5, scale=1.0),
    Metric(name="latency", better="lower", criticality="guards", margin=0.5, relative=True),
    Metric(name="latency_p95", better="lower", criticality="guards", margin=0.1, scale=1.0),
    Metric(name="tokens", better="lower", margin=0.5, relative=True),
    Metric(name="turns", better="lower", margin=0.5, relative=True),
    Metric(name="reward", better="higher", margin=0.05, scale=1.0),
    Metric(name="refusals", better="lower", margin=0.05, scale=1.0),
    Metric(name="cost", better="lower", margin=0.25, relative=True),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in (*LIVE_METRICS, *HELDOUT_METRICS)}


def _by_traffic(heldout: T, live: T) -> Callable[[dict[str, Any]], T]:
    return lambda given: live if given.get("traffic") == "live" else heldout


class CanaryConfig(Config):
    """How a candidate is tried on live sessions before it becomes the champion."""

    traffic: Literal["heldout", "live"] = Field(
        default="heldout",
        description="heldout: the run plays its held-out problems through a gateway of its own; live: what users send "
        "to the standing gateway",
    )
    stages: tuple[Stage, ...] = Field(
        default_factory=_by_traffic(HELDOUT_STAGES, LIVE_STAGES),
        min_length=1,
        description="the candidate's way into traffic; default for live traffic: shadow, 1 %, 5 %, 25 %, 50 %, 100 %",
    )
    approval: Literal["none", "before_promotion"] = Field(
        default="none", description="whether a person is asked before a promotion, on live traffic"
    )
    gateway: GatewayConfig = Field(default=GatewayConfig(), description="the server the sessions go through")
    minimum_sessions: int = Field(default=20, ge=10, description="least sessions of each arm for any verdict")
    max_sessions: int = Field(
        default_factory=_by_traffic(400, 50_000),
        ge=1,
        description="sessions after which an undecided canary holds; default: 400, for live traffic 50000",
    )
    alpha: float = Field(default=0.05, gt=0, lt=0.5, description="chance of any false alarm, however often one looks")
    tuned_sessions: int = Field(default=100, ge=2, description="sessions an arm at which the interval is tightest")
    tail_sessions: int = Field(
        default=100, ge=20, description="the champion's first sessions, which say what slow is for latency_p95"
    )
    metrics: tuple[Metric, ...] = Field(
        default_factory=_by_traffic(HELDOUT_METRICS, LIVE_METRICS),
        description="what is watched; on live traffic more of them guard",
    )
    concurrency: int = Field(default=32, ge=1, description="held-out sessions in flight")
    look_every: int = Field(default=32, ge=1, description="held-out sessions of a wave, after which one looks")
    look_seconds: float = Field(default=10.0, gt=0, description="time between two looks at live traffic")
    idle_seconds: float = Field(
        default=900.0, gt=0, description="a live session whose outcome is not told ends so long after its last turn"
    )
    stopped_seconds: float = Field(
        default=1800.0, gt=0, description="live traffic that has brought no session for so long has stopped"
    )
    temperature: float = Field(default=1.0, ge=0, description="sampling temperature of held-out sessions; 0 is greedy")
    turn_tokens: int = Field(default=64, ge=1, description="most tokens of one model message, as in training")
    retries: int = Field(default=2, ge=0, description="times a refused or lost request is sent again")
    seed: int = Field(default=0, ge=0, description="order of the problems, and sampling")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        shadow = [stage.shadow for stage in self.stages]
        if shadow != sorted(shadow, reverse=True):
            raise ValueError("a shadow stage comes after a share: write the stages with shadow = true first")
        shares = [stage.share for stage in self.stages if not stage.shadow]
        if shares != sorted(set(shares)):
            raise ValueError("shares of the stages rise from stage to stage: write for example 0.25, then 0.5")
        if not shares or shares[0] == 1:
            raise ValueError("no stage has shares of both arms: add one with share = 0.5, where they are compared")
        if self.traffic == "heldout":
            self._refuse_live_only()
        self._check_metrics()
        return self

    def _refuse_live_only(self) -> None:
        if any(stage.shadow or stage.share == 1 or stage.bake_seconds for stage in self.stages):
            raise ValueError("shadow, share = 1 and bake_seconds of stages need users: write traffic = 'live'")
        if self.approval != "none":
            raise ValueError("approval needs live traffic: write traffic = 'live', or approval = 'none'")

    def _check_metrics(self) -> None:
        names = [metric.name for metric in self.metrics]
        if len(set(names)) != len(names):
            raise ValueError(f"a metric is named twice in {names}: keep one")
        if unknown := set(names) - METRICS.keys():
            raise ValueError(f"no metric {', '.join(sorted(unknown))}: write one of {', '.join(sorted(METRICS))}")
        if not any(metric.criticality == "promotes" for metric in self.metrics):
            raise ValueError("no metric promotes, so nothing could: set criticality = 'promotes' on success")

    @property
    def compared(self) -> int:
        """The last stage in which both arms get sessions."""
        return max(number for number, stage in enumerate(self.stages) if stage.shadow or stage.share < 1)
