"""What a canary on real traffic found at its last look, and what a person answered it: two files in its folder.

StandingStatus -> status.json;  Answer (form, command) -> answer.json
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field

from data_contracts.gates import Gate, Verdict
from data_contracts.records import Record
from data_contracts.store import read_json, write_json
from models.trial import Trial
from tasks.canary.decision import Action, Decision, Need
from tasks.canary.sessions import ARMS, Arm, LiveSession
from tasks.paths import ServiceFolder

Ending = Literal["promoted", "rolled_back", "held", "superseded"]
_VERDICTS: dict[Ending | None, Verdict] = {"promoted": Verdict.PASS, "rolled_back": Verdict.FAIL}


class StandingStatus(Record):
    """A canary as it stood at its last look. The registry's trial is what counts; this is what is shown of it."""

    id: str
    name: str = Field(description="of the agent")
    champion: int
    candidate: int
    began: str = Field(description="UTC, ISO 8601; sessions that began earlier say nothing")
    looked: str | None = Field(default=None, description="when the last look was: UTC, ISO 8601")
    stage: int = 0
    stages: int = Field(default=1, description="how many there are")
    share: float = 0.0
    shadow: bool = False
    sessions: dict[Arm, int] = Field(default_factory=lambda: dict.fromkeys(ARMS, 0))
    bake_left: float = Field(default=0.0, ge=0, description="seconds")
    action: Action = Field(default="continue", description="what was decided; it is written before it is done")
    waits_for: Need | None = None
    why: str = ""
    gates: tuple[Gate, ...] = ()
    ending: Ending | None = None

    def seen(self, trial: Trial, decision: Decision, sessions: Sequence[LiveSession], bake_left: float) -> Self:
        """The status after a look that decided so."""
        by_arm = Counter(session.arm for session in sessions)
        return self.model_copy(
            update={
                "stage": trial.stage,
                "share": trial.share,
                "shadow": trial.shadow,
                "sessions": {arm: by_arm[arm] for arm in ARMS},
                "bake_left": bake_left,
                "action": decision.action,
                "waits_for": decision.waits_for,
                "why": decision.reason,
                "gates": decision.gates,
            }
        )

    def in_words(self) -> str:
        """Where the canary stands, in one line."""
        way = "in the shadow" if self.shadow else f"share {self.share:g}"
        where = self.ending or f"stage {self.stage + 1} of {self.stages}, {way}"
        sessions = ", ".join(f"{self.sessions.get(arm, 0)} sessions of the {arm}" for arm in ARMS)
        return f"release {self.candidate} against {self.champion}: {where}; {sessions}; {self.why}"

    def gate(self) -> Gate:
        """The whole canary as one gate: promoted is PASS, rolled back is FAIL, anything else is INCONCLUSIVE."""
        evidence: dict[str, float | int | str | bool | None] = {
            "action": self.ending or self.action,
            "sessions": sum(self.sessions.values()),
            "stage": self.stage,
        }
        verdict = _VERDICTS.get(self.ending, Verdict.INCONCLUSIVE)
        return Gate(name="canary", verdict=verdict, reason=self.why, evidence=evidence)


class Answer(Record):
    """A person's word on a promotion."""

    approved: bool
    who: str
    why: str = ""


def write_status(folder: ServiceFolder, status: StandingStatus) -> None:
    """Keep what a look found."""
    write_json(folder.canary(status.id) / "status.json", status)


def all_statuses(folder: ServiceFolder) -> list[StandingStatus]:
    """Every canary of an agent on real traffic, in the order in which they began."""
    files = folder.canary("").glob("*/status.json")
    return sorted((StandingStatus.model_validate(read_json(file)) for file in files), key=lambda status: status.began)


def write_answer(folder: ServiceFolder, id: str, answer: Answer) -> None:
    """Answer a canary; the last answer counts until it acts on it."""
    write_json(folder.canary(id) / "answer.json", answer)


def answer_to(folder: ServiceFolder, id: str) -> Answer | None:
    """What a person answered, if one did."""
    file = folder.canary(id) / "answer.json"
    return Answer.model_validate(read_json(file)) if file.exists() else None
