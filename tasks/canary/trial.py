"""A candidate's trial: waves of live sessions, a decision after each, until it is promoted, rolled back or held.

held-out problems -> wave of live sessions -> canary_decision -> the share moves -> next wave ... -> CanaryReport

Sessions are played in waves so that a run with the same seed gives every session the same arm and stage.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from data_contracts.gates import Gate, Verdict
from data_contracts.records import Problem, Record
from data_contracts.store import append_jsonl, read_json, read_jsonl, write_json
from tasks.canary.config import CanaryConfig
from tasks.canary.decision import Circumstances, Decision, canary_decision
from tasks.canary.gateway import Gateway
from tasks.canary.live import Client, Desk, Job, play_all
from tasks.canary.routing import Served
from tasks.canary.sessions import UNATTRIBUTABLE, LiveSession
from tasks.rollout.sandbox import WarmPool


class Look(Record):
    """One look at the evidence: how many sessions there were, and what was decided."""

    sessions: int
    decision: Decision


class CanaryReport(Record):
    """How the trial went. The alias is the flow's to move: to the candidate on `promote`, else it stays."""

    champion: str
    candidate: str
    decision: Decision
    sessions: int
    looks: tuple[Look, ...]
    seconds: float

    def gate(self) -> Gate:
        """The whole canary as one gate: promote is PASS, rollback is FAIL, hold is INCONCLUSIVE."""
        verdicts = {"promote": Verdict.PASS, "rollback": Verdict.FAIL}
        verdict = verdicts.get(self.decision.action, Verdict.INCONCLUSIVE)
        evidence: dict[str, float | int | str | bool | None] = {
            "action": self.decision.action,
            "sessions": self.sessions,
            "stage": self.decision.stage,
        }
        return Gate(name="canary", verdict=verdict, reason=self.decision.reason, evidence=evidence)


def run_trial(
    gateway: Gateway,
    candidate: Served,
    problems: Sequence[Problem],
    pools: tuple[WarmPool, WarmPool],
    config: CanaryConfig,
    folder: Path,
    on_session: Callable[[LiveSession], None] | None = None,
) -> CanaryReport:
    """Try `candidate` behind an open gateway; `pools` are the agent's sandboxes and the verifier's.

    Each finished session is a line of `folder`/sessions.jsonl, the end is `folder`/report.json: a trial that was killed
    goes on where it was, one that ended is read back. A gateway that is given another candidate meanwhile ends this.
    """
    report_path = folder / "report.json"
    if report_path.exists():
        return CanaryReport.model_validate(read_json(report_path))
    started = time.monotonic()
    log = folder / "sessions.jsonl"
    sessions = [LiveSession.model_validate(row) for row in read_jsonl(log).rows]
    jobs = _jobs(problems, config, candidate.release)
    decision = canary_decision(sessions, config)
    gateway.begin(candidate, 0.0)
    _follow(gateway, decision)
    looks: list[Look] = []

    def keep(session: LiveSession) -> None:
        append_jsonl(log, session.model_dump_json())
        if on_session:
            on_session(session)

    with Client(gateway.url, config) as client:
        desk = Desk(client, pools[0], pools[1], config, gateway.tool_format)
        while decision.action == "continue":
            played = {session.session for session in sessions}
            wave = [job for job in jobs if job.session not in played][: config.look_every]
            ended = play_all(wave, desk, keep)
            sessions += ended
            decision = _look(gateway, candidate, sessions, ended, len(jobs), config)
            looks.append(Look(sessions=len(sessions), decision=decision))
    report = CanaryReport(
        champion=gateway.routes.champion.release,
        candidate=candidate.release,
        decision=decision,
        sessions=len(sessions),
        looks=tuple(looks),
        seconds=time.monotonic() - started,
    )
    write_json(report_path, report)
    return report


def _look(
    gateway: Gateway,
    candidate: Served,
    sessions: Sequence[LiveSession],
    wave: Sequence[LiveSession],
    most: int,
    config: CanaryConfig,
) -> Decision:
    """Decide, and let the routes follow; a candidate that is no longer the one on trial moves nothing."""
    superseded = gateway.routes.candidate != candidate
    stopped = bool(wave) and all(session.status in UNATTRIBUTABLE for session in wave)
    given = Circumstances(stopped=stopped, exhausted=len(sessions) >= most, superseded=superseded)
    decision = canary_decision(sessions, config, given)
    if not superseded:
        _follow(gateway, decision)
    return decision


def _follow(gateway: Gateway, decision: Decision) -> None:
    if decision.action == "continue":
        gateway.routes.move(decision.share, decision.stage)
    elif decision.action == "promote":
        gateway.routes.promote()
    else:
        gateway.routes.end()


def _jobs(problems: Sequence[Problem], config: CanaryConfig, release: str) -> list[Job]:
    """At most `max_sessions` sessions, one a problem, in an order drawn by the seed."""
    order = sorted(problems, key=lambda problem: problem.id)
    random.Random(config.seed).shuffle(order)
    return [Job(problem, f"{release}-{problem.id}") for problem in order[: config.max_sessions]]
