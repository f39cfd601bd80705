"""Live sessions over HTTP, and whole trials: promoted, rolled back, held, resumed after a kill, superseded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.gates import Verdict
from data_contracts.records import Problem, Sampling
from models.chat import Chat
from tasks.canary.audit import read_audit
from tasks.canary.config import CanaryConfig, Stage
from tasks.canary.gateway import Gateway
from tasks.canary.live import Client, Desk, Job, play_all
from tasks.canary.routing import Served, position
from tasks.canary.trial import run_trial
from tasks.drift.tables import audit_table
from tasks.rollout.agent import Agent
from tasks.rollout.agent import Job as RolloutJob
from tasks.rollout.calls import run_calls
from tasks.rollout.config import RolloutConfig
from tasks.rollout.engine import EngineError
from tasks.rollout.environments import open_session
from tasks.rollout.sandbox import SandboxError, WarmPool
from tasks.rollout.slot_engine import SlotEngine

Open = Callable[..., Gateway]
Scripted = Callable[..., Any]
Pools = tuple[WarmPool, WarmPool]
STAGES = (Stage(share=0.25, sessions=10), Stage(share=0.5, sessions=10))
CONFIG = CanaryConfig(turn_tokens=200, concurrency=8, look_every=32, stages=STAGES)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


SOLVES = [call("read"), call("edit", line=2, text="    return a + b"), call("test"), call("submit")]
GIVES_UP = [call("read"), call("submit")]


def play(gateway: Gateway, problems: list[Problem], pools: Pools, config: CanaryConfig = CONFIG) -> list[Any]:
    with Client(gateway.url, config) as client:
        jobs = [Job(problem, f"live-{problem.id}") for problem in problems]
        return play_all(jobs, Desk(client, pools[0], pools[1], config))


def test_a_session_is_played_verified_and_audited(
    open_gateway: Open, scripted: Scripted, problems: list[Problem], pools: Pools, tmp_path: Path
) -> None:
    engine = scripted(lambda version, session, turn: (SOLVES if session == "live-add-0" else GIVES_UP)[turn])
    solved, given_up = play(open_gateway(engine), problems[:2], pools)
    assert (solved.status, solved.outcome, solved.turns, solved.tool_errors) == ("completed", True, 4, 0)
    assert (given_up.status, given_up.outcome, given_up.turns) == ("completed", False, 2)
    assert (solved.release, solved.digest, solved.arm) == ("release-1", "digest-1", "champion")
    rows = read_audit(tmp_path / "audit")
    mine = rows[rows["session"] == "live-add-0"]
    assert list(mine["kind"]) == ["turn"] * 4 + ["outcome"]
    assert mine["completion_tokens"].sum() == solved.tokens
    assert [list(names) for names in mine["tool_calls"]][:4] == [["read"], ["edit"], ["test"], ["submit"]]
    columns = ["horizon", "prompt_tokens", "turns", "tokens", "success"]
    told = [(s.horizon, s.prompt_tokens, s.turns, s.tokens, float(s.outcome)) for s in (solved, given_up)]
    assert sorted(audit_table(rows)[columns].itertuples(index=False, name=None)) == sorted(told)


@pytest.mark.parametrize(
    ("said", "status", "outcome", "tool_errors"),
    [
        ([call("read")] * 5, "out_of_turns", False, 0),
        ([call("edit", line=99, text="x")] * 5, "out_of_turns", False, 5),
        (['<tool_call>\n{"name": "read"\n</tool_call>'] * 5, "out_of_turns", False, 5),
        (["no call"] * 5, "out_of_turns", False, 5),
        (["words " * 300] * 5, "out_of_tokens", False, 2),
        ([EngineError("no memory")] * 9, "engine_error", None, 0),
    ],
)
def test_every_ending_is_typed(
    open_gateway: Open,
    scripted: Scripted,
    problems: list[Problem],
    pools: Pools,
    said: list[Any],
    status: str,
    outcome: bool | None,
    tool_errors: int,
) -> None:
    [session] = play(open_gateway(scripted(lambda version, name, turn: said[turn])), problems[:1], pools)
    assert (session.status, session.outcome, session.tool_errors) == (status, outcome, tool_errors)
    assert session.release == "release-1"


def test_a_failing_verifier_gives_no_outcome(
    open_gateway: Open, scripted: Scripted, problems: list[Problem], pools: Pools
) -> None:
    class Broken:
        def call(self, request: dict[str, Any]) -> dict[str, Any]:
            raise SandboxError("no sandbox")

    engine = scripted(lambda version, name, turn: SOLVES[turn])
    [session] = play(open_gateway(engine), problems[:1], (pools[0], Broken()))  # type: ignore[arg-type]
    assert (session.status, session.outcome) == ("verifier_error", None)


def test_the_real_engine_plays_many_sessions_at_once(
    open_gateway: Open, slot_engine: SlotEngine, problems: list[Problem], pools: Pools
) -> None:
    config = CONFIG.model_copy(update={"turn_tokens": 16, "concurrency": 16})
    sessions = play(open_gateway(slot_engine), problems[:32], pools, config)
    assert [session.problem_id for session in sessions] == [problem.id for problem in problems[:32]]
    assert {session.outcome for session in sessions} == {False}
    assert sum(session.tokens for session in sessions) > 300


def test_a_live_session_is_token_for_token_what_a_rollout_is(
    open_gateway: Open, slot_engine: SlotEngine, problems: list[Problem], pools: Pools, chat: Chat, tmp_path: Path
) -> None:
    """Greedy, so that both sample alike; every turn is cut or calls nothing, so that the errors' words are compared."""
    problem, width = problems[0], 30
    config = CONFIG.model_copy(update={"turn_tokens": width, "temperature": 0.0})
    [live] = play(open_gateway(slot_engine), [problem], pools, config)
    served = read_audit(tmp_path / "audit").query("kind == 'turn'")
    agent = Agent(
        RolloutJob(problem, "g", 0, 0, 0, "run"),
        open_session(problem, pools[0]),
        chat,
        name="direct",
        policy_version="release-1",
        sampling=Sampling(temperature=0.0),
        config=RolloutConfig(max_turn_tokens=width),
    )
    while agent.status is None:
        slot_engine.submit(agent.request())
        while not (ended := slot_engine.poll()):
            pass
        calls = agent.take_completion(ended[0][1])
        agent.take_results(run_calls(agent.session, calls))
    turns = agent.finish().trajectory.turns
    assert list(served["prompt_tokens"]) == [turn.prompt_tokens for turn in turns]
    assert list(served["completion_tokens"]) == [turn.completion_tokens for turn in turns]
    assert (live.status, live.turns) == (agent.status, len(turns)) and len(turns) > 1
    assert live.tool_errors == agent.finish().trajectory.malformed_calls


QUICK, NOTHING = [SOLVES[1], SOLVES[3]], [SOLVES[3]]


def by_version(champion: list[str], candidate: list[str]) -> Callable[[str, str, int], str]:
    return lambda version, session, turn: (candidate if version == "release-2" else champion)[turn]


def test_a_better_candidate_is_promoted_and_the_report_is_kept(
    open_gateway: Open, scripted: Scripted, problems: list[Problem], pools: Pools, candidate: Served, tmp_path: Path
) -> None:
    gateway = open_gateway(scripted(by_version(NOTHING, QUICK)))
    report = run_trial(gateway, candidate, problems, pools, CONFIG, tmp_path / "canary")
    assert (report.decision.action, report.gate().verdict) == ("promote", Verdict.PASS)
    assert gateway.routes.champion == candidate and gateway.routes.candidate is None
    shares = [look.decision.share for look in report.looks]
    assert shares == sorted(shares) and shares[-1] == 1.0 and 0.5 in shares
    assert run_trial(gateway, candidate, [], pools, CONFIG, tmp_path / "canary") == report


def test_a_worse_candidate_is_rolled_back(
    open_gateway: Open, scripted: Scripted, problems: list[Problem], pools: Pools, candidate: Served, tmp_path: Path
) -> None:
    gateway = open_gateway(scripted(by_version(QUICK, NOTHING)))
    report = run_trial(gateway, candidate, problems, pools, CONFIG, tmp_path / "canary")
    assert (report.decision.action, report.gate().verdict) == ("rollback", Verdict.FAIL)
    assert gateway.routes.champion.release == "release-1" and gateway.routes.candidate is None


def test_too_few_problems_to_tell_hold(
    open_gateway: Open, scripted: Scripted, problems: list[Problem], pools: Pools, candidate: Served, tmp_path: Path
) -> None:
    gateway = open_gateway(scripted(by_version(QUICK, QUICK)))
    report = run_trial(gateway, candidate, problems[:40], pools, CONFIG, tmp_path / "canary")
    assert (report.decision.action, report.sessions) == ("hold", 40)
    assert report.gate().verdict is Verdict.INCONCLUSIVE
    assert gateway.routes.champion.release == "release-1" and gateway.routes.candidate is None


def test_a_gateway_that_is_gone_holds_after_one_wave(
    open_gateway: Open, scripted: Scripted, problems: list[Problem], pools: Pools, candidate: Served, tmp_path: Path
) -> None:
    gateway = open_gateway(scripted(by_version(QUICK, QUICK)))
    config = CONFIG.model_copy(update={"retries": 0})
    gateway._server.should_exit = True
    gateway._thread.join()
    report = run_trial(gateway, candidate, problems, pools, config, tmp_path / "canary")
    assert (report.decision.action, report.sessions) == ("hold", config.look_every)
    assert "traffic has stopped" in report.decision.reason


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs in the trial."""


def test_a_killed_trial_goes_on_and_plays_no_session_twice(
    open_gateway: Open, scripted: Scripted, problems: list[Problem], pools: Pools, candidate: Served, tmp_path: Path
) -> None:
    engine = scripted(by_version(NOTHING, QUICK))
    seen: list[str] = []

    def kill_after(count: int) -> Callable[[Any], None]:
        def on_session(session: Any) -> None:
            seen.append(session.session)
            if len(seen) == count:
                raise Killed

        return on_session

    folder = tmp_path / "canary"
    with pytest.raises(Killed):
        run_trial(open_gateway(engine), candidate, problems, pools, CONFIG, folder, kill_after(45))
    recorded = set(seen)
    assert not (folder / "report.json").exists()
    seen.clear()
    engine.turns.clear()
    report = run_trial(
        open_gateway(engine), candidate, problems, pools, CONFIG, folder, lambda s: seen.append(s.session)
    )
    assert report.decision.action == "promote"
    assert not recorded & set(seen) and len(seen) == len(set(seen))
    assert report.sessions == len(recorded) + len(seen)
    lines = [json.loads(line) for line in (folder / "sessions.jsonl").read_text().splitlines()]
    assert len({line["session"] for line in lines}) == len(lines) == report.sessions


def test_a_newer_candidate_ends_the_trial_and_never_falls_back_to_the_older(
    open_gateway: Open, scripted: Scripted, problems: list[Problem], pools: Pools, candidate: Served, tmp_path: Path
) -> None:
    """The older one would have won."""
    engine = scripted(by_version(NOTHING, QUICK))
    engine.digests["release-3"] = "digest-3"
    gateway = open_gateway(engine)
    newer = Served("release-3", "digest-3")
    report = run_trial(
        gateway, candidate, problems, pools, CONFIG, tmp_path / "canary",
        lambda session: gateway.begin(newer, 0.25) if gateway.routes.candidate == candidate else None,
    )  # fmt: skip
    assert report.decision.action == "rollback" and "newer candidate" in report.decision.reason
    assert (gateway.routes.champion.release, gateway.routes.candidate) == ("release-1", newer)
    gateway.routes.end()
    assert {gateway.routes.assign(f"s{n}").served.release for n in range(50)} == {"release-1"}


def test_a_raised_share_keeps_the_candidates_sessions_and_is_even() -> None:
    points = [position(f"session-{n}") for n in range(4000)]
    assert all(0 <= point < 1 for point in points)
    assert abs(sum(point < 0.25 for point in points) / 4000 - 0.25) < 0.03
