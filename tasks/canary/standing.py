"""A canary on real traffic: looks at the audit log, and moves the trial that the standing gateway follows.

audit log -> canary_decision -> registry's trial: next share ... 100 % -> alias (promoted)  or  no trial (rolled back)

All that counts is in the registry: a canary that was killed reads there how far it came. It ends when its trial is
over, whoever ended it; what it moves, it moves only while that trial is its own, so that a newer candidate's stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from data_contracts.errors import UserError
from models.registry import ChampionMoved, Registry, TrialMoved
from models.trial import Serving, Trial
from tasks.canary.audit import read_audit
from tasks.canary.config import CanaryConfig
from tasks.canary.decision import Circumstances, Decision, canary_decision
from tasks.canary.observed import COLUMNS, Observed, Pair, observe
from tasks.canary.standing_status import Ending, StandingStatus, all_statuses, answer_to, write_status
from tasks.paths import ServiceFolder

Promoter = Callable[[], AbstractContextManager[object]]
"""Opens what lets one promoter through at a time; raises TimeoutError while another one is there."""


class Seat(NamedTuple):
    """Where a canary on real traffic sits: the registry it moves, the service's folder, who it moves things as."""

    registry: Registry
    folder: ServiceFolder
    who: str
    promoter: Promoter = nullcontext


def begin(seat: Seat, candidate: int, config: CanaryConfig) -> StandingStatus:
    """Put a candidate on trial, in place of any other; a canary of its that has not ended is gone on with.

    Raises UserError when there is no other champion to compare it with.
    """
    seat.registry.reconcile()
    serving = seat.registry.serving()
    if serving is None:
        raise UserError(f"{seat.folder.name!r} has no champion to compare release {candidate} with: promote one first.")
    before = [status for status in all_statuses(seat.folder) if status.candidate == candidate]
    if before and before[-1].ending is None:
        status = before[-1]
    elif serving.champion.version == candidate:
        raise UserError(f"release {candidate} is the champion already: `ratchet status` shows it.")
    else:
        status = _fresh(seat, serving, candidate, len(before) + 1, config)
    if not _begun(seat.registry, status.id) and serving.champion.version == status.champion:
        trial = Trial(id=status.id, champion=status.champion, candidate=candidate, **_place(config, 0))
        seat.registry.set_trial(trial, who=seat.who, why="a canary on live traffic begins")
    return status


def watch(
    seat: Seat, status: StandingStatus, config: CanaryConfig, on_look: Callable[[StandingStatus], None]
) -> StandingStatus:
    """Look, and look again, until the canary has ended; `on_look` hears what each look found."""
    while True:
        status = look(seat, status, config)
        on_look(status)
        if status.ending is not None:
            return status
        time.sleep(config.look_seconds)


def look(seat: Seat, status: StandingStatus, config: CanaryConfig) -> StandingStatus:
    """One look: decide on the sessions so far, act, and keep what was found; nothing more once the trial is over."""
    serving = _serving(seat.registry)
    trial = serving.trial
    if trial is not None and trial.id == status.id:
        status = _act(seat, status, trial, config)
        serving = _serving(seat.registry)
    status = status.model_copy(update={"looked": _now().isoformat(timespec="milliseconds")})
    status = settled(seat.registry, serving, status)
    write_status(seat.folder, status)
    return status


def settled(registry: Registry, serving: Serving | None, status: StandingStatus) -> StandingStatus:
    """The status with its ending, where the registry says that the canary is over, whoever ended it."""
    ended = _ended(registry, serving, status) if status.ending is None and serving is not None else None
    if ended is None:
        return status
    return status.model_copy(update={"ending": ended[0], "why": ended[1], "waits_for": None})


def _act(seat: Seat, status: StandingStatus, trial: Trial, config: CanaryConfig) -> StandingStatus:
    """Decide, say so, and do it; where somebody else moved meanwhile, that stands."""
    decision, seen = _decide(seat, status, trial, config)
    left = max(0.0, config.stages[trial.stage].bake_seconds - _lasted(trial))
    status = status.seen(trial, decision, seen.sessions, left)
    write_status(seat.folder, status)
    with suppress(TrialMoved, ChampionMoved, TimeoutError):
        if decision.action == "promote":
            _promote(seat, status, trial, config)
        elif decision.action == "rollback" or (decision.action == "hold" and decision.waits_for != "traffic"):
            seat.registry.set_trial(None, who=seat.who, why=decision.reason, only_if=trial.id)
        elif decision.stage != trial.stage:
            following = trial.model_copy(update=_place(config, decision.stage))
            seat.registry.set_trial(following, who=seat.who, why=decision.reason, only_if=trial.id)
    return status


def _promote(seat: Seat, status: StandingStatus, trial: Trial, config: CanaryConfig) -> None:
    """Move the alias, if the sessions so far still say so once it is our turn."""
    with seat.promoter():
        decision, seen = _decide(seat, status, trial, config)
        if decision.action == "promote":
            gate = status.seen(trial, decision, seen.sessions, 0.0).model_copy(update={"ending": "promoted"}).gate()
            seat.registry.promote(
                trial.candidate, who=seat.who, why=decision.reason, evidence=[gate], compared_with=trial.champion
            )


def _decide(seat: Seat, status: StandingStatus, trial: Trial, config: CanaryConfig) -> tuple[Decision, Observed]:
    now, since = _now(), datetime.fromisoformat(status.began)
    days = [(since + timedelta(days=day)).date().isoformat() for day in range((now.date() - since.date()).days + 1)]
    pair = Pair(f"release-{trial.champion}", f"release-{trial.candidate}")
    idle = timedelta(seconds=config.idle_seconds)
    seen = observe(read_audit(seat.folder.audit, days, columns=COLUMNS), pair, since=since, now=now, idle=idle)
    answer = answer_to(seat.folder, status.id)
    heard = max(seen.last or since, datetime.fromisoformat(trial.since))
    given = Circumstances(
        stage=trial.stage,
        seconds=_lasted(trial),
        approved=answer.approved if answer else None,
        stopped=(now - heard).total_seconds() > config.stopped_seconds,
    )
    return canary_decision(seen.sessions, config, given), seen


def _ended(registry: Registry, serving: Serving, status: StandingStatus) -> tuple[Ending, str] | None:
    """How the canary ended, and why; None while its trial goes on."""
    champion, trial = serving.champion.version, serving.trial
    if champion == status.candidate:
        return "promoted", status.why
    if champion != status.champion:
        return "superseded", f"the champion is release {champion} now"
    if trial is None:
        last = registry.history()[-1]
        return "held" if status.action == "hold" else "rolled_back", last.why
    if trial.id != status.id:
        return "superseded", f"a newer candidate, release {trial.candidate}, is on trial"
    return None


def _fresh(seat: Seat, serving: Serving, candidate: int, number: int, config: CanaryConfig) -> StandingStatus:
    status = StandingStatus(
        id=f"release-{candidate}-{number}",
        name=seat.folder.name,
        champion=serving.champion.version,
        candidate=candidate,
        began=_now().isoformat(timespec="milliseconds"),
        stages=len(config.stages),
    )
    write_status(seat.folder, status)
    return status


def _begun(registry: Registry, id: str) -> bool:
    return any(move.trial is not None and move.trial.id == id and move.state == "done" for move in registry.history())


def _place(config: CanaryConfig, stage: int) -> dict[str, Any]:
    """A stage as a trial has it, from now on; a shadow answers nobody."""
    settings = config.stages[stage]
    return {
        "stage": stage,
        "share": 0.0 if settings.shadow else settings.share,
        "shadow": settings.shadow,
        "since": _now().isoformat(timespec="milliseconds"),
    }


def _lasted(trial: Trial) -> float:
    """Seconds since the stage began."""
    return (_now() - datetime.fromisoformat(trial.since)).total_seconds()


def _serving(registry: Registry) -> Serving:
    serving = registry.serving()
    if serving is None:
        raise UserError(f"{registry.name!r} has no champion any more: promote one, then start the canary again.")
    return serving


def _now() -> datetime:
    return datetime.now(UTC)
