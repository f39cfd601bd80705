"""Sessions that branch off recorded ones: replayed to the token, restored to the file, no tool run twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.records import Problem, Rollout, Sampling, ToolCall, Trajectory
from data_contracts.store import frame_of
from data_contracts.validate import validate_rollouts
from models.chat import Chat
from models.policy import Base, load_base
from tasks.credit.branch import plan_branches
from tasks.credit.decisions import Decision
from tasks.curriculum.generator import generate
from tasks.rollout.agent import Job
from tasks.rollout.branching import BranchJob, NotReplayable, Point, branch_jobs, replay, replaying, sampled_turns
from tasks.rollout.config import RolloutConfig
from tasks.rollout.context import ContextConfig
from tasks.rollout.environments import open_session
from tasks.rollout.environments.base import FileSession, ToolResult
from tasks.rollout.environments.repair import RepairSession
from tasks.rollout.jobs import jobs_for
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.scheduler import Scheduler, agents, run_sessions
from tasks.rollout.slot_engine import SlotEngine
from tasks.rollout.stream import Stream

STARTER = Path(__file__).parents[3] / "models" / "starter"
V = "policy-00000"
CONFIG = RolloutConfig(capacity=16)


class Starter:
    """The starter model's engine, and sessions of it on generated problems."""

    def __init__(self, base: Base, pool: WarmPool) -> None:
        self.chat, self.pool = Chat(base.tokenizer), pool
        self.engine = SlotEngine.from_base(base, slots=16)
        self.engine.load_adapter(V, None)
        self.calls: Counter[str] = Counter()
        problems = generate(5, "train", "short", 3) + generate(5, "train", "medium", 1)
        jobs = jobs_for(problems, range(3), iteration=0, run_id="run", seed=0)
        self.jobs = {job.trajectory_id: job for job in jobs}
        self.rollouts = run_sessions(
            jobs, self.engine, self.chat, open_session=self.open, policy_version=V, sampling=Sampling(), config=CONFIG
        )

    def open(self, problem: Problem) -> RepairSession:
        session = open_session(problem, self.pool)
        assert isinstance(session, RepairSession)
        call = session.call

        def counted(given: ToolCall) -> ToolResult:
            self.calls[given.name] += 1
            return call(given)

        session.call = counted  # type: ignore[method-assign]
        return session

    def start(self, job: Job, name: str, version: str) -> Any:
        return replaying(agents(self.chat, self.open, Sampling(), CONFIG))(job, name, version)

    def stream(self, folder: Path) -> Stream:
        scheduler = Scheduler(self.engine, self.start, CONFIG)
        return Stream(scheduler, lambda number: folder / f"{number}.jsonl", 0)

    def points(self) -> list[Point]:
        """Every point of every rollout."""
        return [
            Point(rollout.trajectory, sampled_turns(rollout.segments), turn)
            for rollout in self.rollouts
            for turn in range(len(rollout.trajectory.turns))
        ]

    def branches(self, every: int, rollouts: int) -> list[BranchJob]:
        points = self.points()[::every]
        return [job for p in points for job in branch_jobs(self.jobs[p.trajectory.id], p, rollouts)]


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    with WarmPool(1, "branching") as pool:
        yield Starter(load_base(STARTER), pool)


def files_at(trajectory: Trajectory, problem: Problem, turn: int) -> dict[str, str]:
    """By the tools themselves: the recorded calls up to a turn on a fresh session."""
    session = RepairSession(problem, None)  # type: ignore[arg-type]
    for call in (call for each in trajectory.turns[:turn] for call in each.calls if call.name != "test"):
        session.call(call)
    return session.files


def test_a_replay_is_the_record_at_every_point_and_runs_no_tool(starter: Starter) -> None:
    edited, tested = 0, 0
    starter.calls.clear()
    for point in starter.points():
        job = starter.jobs[point.trajectory.id]
        agent = starter.start(branch_jobs(job, point, 1)[0], "s#0", V)
        (segment,) = next(r for r in starter.rollouts if r.trajectory.id == point.trajectory.id).segments
        request = agent.request()
        context = point.sampled[point.turn].context
        assert list(request.token_ids) == segment.token_ids[: len(context)] == context
        assert agent.turns == point.trajectory.turns[: point.turn]
        assert agent.session.files == files_at(point.trajectory, job.problem, point.turn)
        spent = sum(turn.completion_tokens for turn in point.trajectory.turns[: point.turn])
        assert request.max_tokens == min(CONFIG.max_turn_tokens, job.problem.limits.tokens - spent)
        assert request.seed != job.seed
        edited += agent.session.files != job.problem.files
        tested += agent.session.visible is not None
    assert not starter.calls
    assert edited >= 10 and tested >= 5


def test_branches_go_on_from_the_record_within_the_budgets(starter: Starter, tmp_path: Path) -> None:
    jobs = starter.branches(every=4, rollouts=3)
    starter.calls.clear()
    rollouts = starter.stream(tmp_path).collect(0, jobs)
    live: Counter[str] = Counter()
    continued: dict[str, set[tuple[int, ...]]] = {}
    for job, rollout in zip(jobs, rollouts, strict=True):
        trajectory, (segment,), limits = rollout.trajectory, rollout.segments, job.problem.limits
        point, recorded = job.point, job.point.trajectory
        context = point.sampled[point.turn].context
        assert (trajectory.id, trajectory.group_id) == (job.trajectory_id, point.id)
        assert trajectory.turns[: point.turn] == recorded.turns[: point.turn]
        assert segment.token_ids[: len(context)] == context
        assert len(trajectory.turns) > point.turn and len(trajectory.turns) <= limits.turns
        assert sum(segment.loss_mask) == trajectory.sampled_tokens <= limits.tokens
        assert trajectory.files == files_at(trajectory, job.problem, len(trajectory.turns))
        live.update(call.name for turn in trajectory.turns[point.turn :] for call in turn.calls[: len(turn.answers)])
        continued.setdefault(point.id, set()).add(tuple(segment.token_ids[len(context) :]))
        scored = [0.0, *starter.engine.teacher_force(V, segment.token_ids)]
        gaps = [abs(scored[t] - segment.rollout_logprobs[t]) for t, mask in enumerate(segment.loss_mask) if mask]
        assert max(gaps) < 1e-4
    assert starter.calls == live, "only what was sampled anew was run"
    assert sum(len(found) > 1 for found in continued.values()) > len(continued) / 2, "seeds of their own"
    rows = validate_rollouts(
        frame_of("trajectories", [rollout.trajectory for rollout in rollouts]),
        frame_of("segments", [segment for rollout in rollouts for segment in rollout.segments]),
    )
    assert [part.counts for part in rows] == [{}, {}]


def test_a_kill_among_the_branches_goes_on_from_the_journal(starter: Starter, tmp_path: Path) -> None:
    jobs = starter.branches(every=5, rollouts=2)
    whole = starter.stream(tmp_path / "whole").collect(0, jobs)

    class Killed(BaseException):
        pass

    heard: list[str] = []

    def kill(rollout: Rollout) -> None:
        heard.append(rollout.trajectory.id)
        if len(heard) == len(jobs) // 2:
            raise Killed

    cut = starter.stream(tmp_path)
    with cut._scheduler, pytest.raises(Killed):
        cut.collect(0, jobs, on_done=kill)
    kept = (tmp_path / "0.jsonl").read_bytes()
    (tmp_path / "0.jsonl").write_bytes(kept[:-20])
    told: list[str] = []
    again = starter.stream(tmp_path).collect(0, jobs, on_done=lambda rollout: told.append(rollout.trajectory.id))
    assert len(kept.splitlines()) >= len(heard)
    assert sorted(told) == sorted(job.trajectory_id for job in jobs)
    tokens = [[segment.token_ids for segment in rollout.segments] for rollout in again]
    assert tokens == [[segment.token_ids for segment in rollout.segments] for rollout in whole]
    lines = (tmp_path / "0.jsonl").read_bytes().splitlines()
    assert len(lines) == len(jobs), "each once, whatever was done before"


def test_what_cannot_be_replayed_is_skipped_and_counted(starter: Starter) -> None:
    rollout = next(r for r in starter.rollouts if len(r.trajectory.turns) >= 3)
    good = rollout.trajectory
    turns = list(good.turns)
    silent = turns[0].model_copy(update={"answers": ()})
    forgotten = good.model_copy(update={"id": "forgotten", "turns": (silent, *turns[1:])})
    other = turns[0].model_copy(update={"observation": "x" + turns[0].observation[1:]})
    rewritten = good.model_copy(update={"id": "rewritten", "turns": (other, *turns[1:])})
    batch = {t.id: t for t in (good, forgotten, rewritten)}
    segments = [s.model_copy(update={"trajectory_id": name}) for name in batch for s in rollout.segments]
    jobs = dict.fromkeys(batch, starter.jobs[good.id])
    decisions = [Decision(name, 1, "entropy") for name in batch]
    plan = plan_branches(decisions, batch, segments, jobs, starter.start, 2)
    assert plan.decisions == decisions[:1]
    assert [job.point.id for job in plan.jobs] == [f"{good.id}@1"] * 2 + [f"{good.id}@2"] * 2
    assert plan.skipped == {
        "what its calls came back with was not recorded": 1,
        "its context came out in other tokens than it was recorded in": 1,
    }
    both = [Decision(good.id, 1, "edit"), Decision(good.id, 2, "entropy")]
    shared = plan_branches(both, batch, segments, jobs, starter.start, 2).jobs
    assert len({job.trajectory_id for job in shared}) == len(shared), "a point of two decisions is sampled once"


class Desk(FileSession):
    """Notes on a desk: `write` changes a file, `look` shows as many lines as asked for, `check` fails."""

    def tools(self) -> list[dict[str, Any]]:
        return []

    def call(self, call: ToolCall) -> ToolResult:
        match call.name:
            case "write":
                self.files = {"new.md": str(call.arguments["text"])}
                return ToolResult("written")
            case "look":
                return ToolResult("\n".join(f"line {n}" for n in range(call.arguments["n"])))
            case "check":
                self.visible = (0, 2)
                return ToolResult("0 of 2 pass")
        return ToolResult(f"error: no tool {call.name}", failed=True)


def call_of(name: str, **arguments: Any) -> str:
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"


SCRIPT = (
    call_of("check"),
    call_of("look", n=90) + call_of("fly"),
    call_of("write", text="b") + "<tool_call>{</tool_call>",
    "no call",
    call_of("look", n=2),
)
POLICIES: dict[str, dict[str, Any]] = {
    "keep": {},
    "clip": {"observation_tokens": 64},
    "notes": {"notes_tokens": 64},
    "compact": {"compact_at": 330, "summary_tokens": 16, "observation_tokens": 64},
}


def recorded(drive: Callable[..., Any], context: dict[str, Any], script: tuple[str, ...]) -> tuple[Any, Rollout]:
    options = {"context": ContextConfig(**context), "max_turn_tokens": 120}
    driver = drive(turns=20, tokens=2000, kind=lambda problem: Desk(problem, None), **options)
    for text in script:
        driver.say(text)
        while driver.agent._question is not None:
            driver.say("so far so good")
    driver.agent.end("cancelled", "enough")
    return driver, driver.finish()


def again(driver: Any, rollout: Rollout, turn: int, context: dict[str, Any], kind: Any = Desk) -> Any:
    config = RolloutConfig(max_turn_tokens=120, context=ContextConfig(**context))
    start = agents(driver.chat, lambda problem: kind(problem, None), Sampling(), config)
    agent = start(driver.agent.job, "again#0", V)
    replay(agent, Point(rollout.trajectory, sampled_turns(rollout.segments), turn))
    return agent


@pytest.mark.parametrize("policy", POLICIES)
def test_context_policies_come_to_the_same_context_or_none(drive: Callable[..., Any], policy: str) -> None:
    context = {"policy": policy} | POLICIES[policy]
    noted = (call_of("note", key="k", text="v") + call_of("look", n=1),) if policy == "notes" else ()
    driver, rollout = recorded(drive, context, SCRIPT[:2] + noted + SCRIPT[2:])
    turns = rollout.trajectory.turns
    for place in range(len(turns)):
        if turns[place].purpose == "summary":
            continue
        agent = again(driver, rollout, place, context)
        assert agent.turns == turns[:place]
        assert list(agent.request().token_ids) == driver.contexts[place]
        wrote = any("written" in turn.observation for turn in turns[:place])
        assert agent.session.files == ({"new.md": "b"} if wrote else {"m.py": "a = 1\n"}), "a file that went is gone"
        assert agent.session.visible == ((0, 2) if place else None)
    assert (max(turn.segment for turn in turns) > 0) == (policy in ("notes", "compact"))


def test_a_result_outside_the_context_cannot_be_replayed(drive: Callable[..., Any]) -> None:
    context = {"policy": "externalise", "observation_tokens": 100}
    driver, rollout = recorded(drive, context, SCRIPT)
    assert again(driver, rollout, 1, context).turns == rollout.trajectory.turns[:1]
    with pytest.raises(NotReplayable, match=r"keeps what is not recorded|in another way"):
        again(driver, rollout, 2, context)


def test_a_session_that_cannot_be_restored_is_refused(drive: Callable[..., Any], playground: Any) -> None:
    driver, rollout = recorded(drive, {}, SCRIPT)
    with pytest.raises(NotReplayable, match="cannot restore"):
        again(driver, rollout, 1, {}, kind=lambda problem, _: playground(problem))
