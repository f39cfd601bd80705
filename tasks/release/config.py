"""Settings of the release stage."""

from __future__ import annotations

from pydantic import Field

from data_contracts.config import Config


class ReleaseConfig(Config):
    """When a candidate may be released, and under which name."""

    name: str = Field(
        default="repair-agent",
        pattern=r"^[\w.\-]+$",
        description="name of the agent: its models are <name>-base, <name>-reward, <name>-policy and <name>-release",
    )
    min_gain: float = Field(
        default=0.0,
        ge=-1,
        le=1,
        description="gain in success (a share, not points) over the champion that the interval's lower end must exceed",
    )
    confidence: float = Field(default=0.95, gt=0.5, lt=1, description="level of the interval of the paired gain")
    minimum_pairs: int = Field(
        default=50, ge=2, description="problems both were measured on; with fewer the gate is INCONCLUSIVE"
    )
    minimum_share: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="share of all problems that both were measured on; below it the gate is INCONCLUSIVE",
    )
    keep_last: int = Field(default=10, ge=1, description="newest releases that a collection keeps")
    keep_days: float = Field(
        default=30,
        ge=0,
        description="age under which a collection keeps a release; what serves, is on trial, or can be rolled back to, "
        "it keeps at any age",
    )
    reference_above_mb: int = Field(
        default=64, ge=0, description="a base larger than this is pinned by path and digest, not copied"
    )
