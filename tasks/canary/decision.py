"""What the canary does next, from nothing but the sessions so far.

sessions -> a comparison per metric -> Decision(continue | promote | rollback | hold)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from data_contracts.gates import Gate
from data_contracts.records import Record
from tasks.canary.config import CanaryConfig, Stage
from tasks.canary.evidence import compare_all, failed, missing, proof
from tasks.canary.sessions import ARMS, UNATTRIBUTABLE, LiveSession

Action = Literal["continue", "promote", "rollback", "hold"]
Need = Literal["sessions", "bake", "evidence", "approval", "traffic"]


class Decision(Record):
    """The next step: `share` is the candidate's share of new sessions from now on.

    `hold` promotes nothing and leaves the share where it is; `rollback` always goes to the champion.
    """

    action: Action
    stage: int
    share: float
    reason: str
    waits_for: Need | None = None
    gates: tuple[Gate, ...] = ()


class Circumstances(NamedTuple):
    """What the sessions themselves do not say. `stage` None: the highest that a session began in.

    `seconds`: how long the stage has lasted; `approved`: a person's answer, None before there is one; `stopped`:
    sessions should have come and did not; `exhausted`: no more will come; `superseded`: a newer candidate arrived.
    """

    stage: int | None = None
    seconds: float = math.inf
    approved: bool | None = None
    stopped: bool = False
    exhausted: bool = False
    superseded: bool = False


def canary_decision(
    sessions: Sequence[LiveSession], config: CanaryConfig, given: Circumstances | None = None
) -> Decision:
    """Decide on the sessions so far, in the order in which they ended.

    A stage ends when both arms have had their sessions in it and it has baked; a stage without champion's sessions
    begins only when every metric that promotes has passed, since little can be learnt there.
    """
    given = given or Circumstances()
    stage = max((s.stage for s in sessions), default=0) if given.stage is None else given.stage
    comparisons = compare_all(sessions, config)
    gates = tuple(comparison.gate() for comparison in comparisons.values())
    share = _share(config.stages[stage])

    def decide(
        action: Action, reason: str, share: float = share, stage: int = stage, waits_for: Need | None = None
    ) -> Decision:
        return Decision(action=action, stage=stage, share=share, reason=reason, waits_for=waits_for, gates=gates)

    if given.superseded:
        return decide("rollback", "a newer candidate arrived: back to the champion", 0.0)
    if given.approved is False:
        return decide("rollback", "a person rejected it: back to the champion", 0.0)
    if worse := failed(comparisons, config):
        return decide("rollback", worse.reason, 0.0)
    if given.stopped:
        reason = f"traffic has stopped at {len(sessions)} sessions, in stage {stage}"
        return decide("hold", reason, waits_for="traffic")
    open_questions = missing(comparisons, config)
    step = _step(sessions, stage, config, given, [comparison.reason for comparison in open_questions])
    last = stage == len(config.stages) - 1
    if step is None and last:
        return decide("promote", proof(comparisons, config), 1.0)
    need, reason = step or (None, f"stage {stage} is done")
    if need not in ("bake", "approval") and (given.exhausted or len(sessions) >= config.max_sessions):
        why = open_questions[0].reason if open_questions else reason
        return decide("hold", f"{len(sessions)} sessions did not decide it: {why}")
    if step is None:
        following = _share(config.stages[stage + 1])
        return decide("continue", f"{reason}: share {following:g}", following, stage + 1)
    return decide("continue", reason, waits_for=need)


def _share(stage: Stage) -> float:
    return 0.0 if stage.shadow else stage.share


def _step(
    sessions: Sequence[LiveSession], stage: int, config: CanaryConfig, given: Circumstances, open_questions: list[str]
) -> tuple[Need, str] | None:
    """What the canary waits for before it leaves the stage, and that in words; None: it may leave."""
    here = config.stages[stage]
    if short := _short(sessions, stage, config):
        return "sessions", short
    last = stage == len(config.stages) - 1
    if open_questions and (last or stage == config.compared):
        return "evidence", open_questions[0]
    if given.seconds < here.bake_seconds:
        return "bake", f"stage {stage}: {here.bake_seconds - given.seconds:.0f} seconds of baking are left"
    if last and config.approval == "before_promotion" and not given.approved:
        return "approval", "every metric that promotes has passed: a person is asked"
    return None


def _short(sessions: Sequence[LiveSession], stage: int, config: CanaryConfig) -> str:
    """Why the stage has not had its sessions; empty when it has."""
    here = [s for s in sessions if s.stage == stage and s.status not in UNATTRIBUTABLE]
    had = {arm: sum(s.arm == arm for s in here) for arm in ARMS}
    settings = config.stages[stage]
    if settings.shadow and had["champion"] >= settings.sessions and all(s.status == "engine_error" for s in here):
        return ""  # a champion that answers nothing leaves nothing to copy, and must not block its replacement
    needed = ("candidate",) if stage > config.compared else ARMS
    if min(had[arm] for arm in needed) >= settings.sessions:
        return ""
    return (
        f"stage {stage}: {had['champion']} and {had['candidate']} sessions so far, {settings.sessions} of "
        f"{'each arm' if needed == ARMS else 'the candidate'} are needed"
    )
