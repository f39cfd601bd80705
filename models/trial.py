"""A candidate on trial beside the champion, as everybody who serves reads it.

One JSON text in one tag of `<name>-release`: MLflow writes it at once and gives it out together with the alias, so a
reader sees a champion and the trial that belongs to it, or no trial.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from data_contracts.records import Record
from models.release import Release


class Trial(Record):
    """Which sessions a candidate gets. It counts only while `champion` is the champion."""

    id: str = Field(min_length=1, description="of the canary; a newer candidate's canary has another")
    champion: int = Field(ge=1, description="release that the candidate is compared with")
    candidate: int = Field(ge=1, description="release on trial")
    stage: int = Field(default=0, ge=0, description="of the canary's stages")
    share: float = Field(ge=0, le=1, description="of the new sessions that the candidate answers")
    shadow: bool = Field(default=False, description="the candidate answers copies of requests; nobody sees its answers")
    since: str = Field(description="when this stage began: UTC, ISO 8601")


@dataclass(frozen=True, slots=True)
class Serving:
    """What is to be served now, from one read: the champion and, during a canary, its challenger."""

    champion: Release
    trial: Trial | None = None
    candidate: Release | None = None
