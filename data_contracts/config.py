"""The base of every stage's configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Frozen settings; an unknown key is refused, so that a misspelt one never passes in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
