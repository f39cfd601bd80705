"""Sessions in flight on the real engine: the same result whatever the tools' timing; failures, resuming."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from data_contracts.records import Problem, Rollout, Sampling, ToolCall
from models.chat import Chat
from tasks.rollout.agent import Job
from tasks.rollout.config import RolloutConfig
from tasks.rollout.engine import Completion, ContextFull, EngineError, Pressure, SampleRequest
from tasks.rollout.environments.base import ToolResult
from tasks.rollout.journal import Journal
from tasks.rollout.sandbox import SandboxError
from tasks.rollout.scheduler import run_sessions
from tasks.rollout.slot_engine import SlotEngine

V = "policy-00000"
MakeProblem = Callable[..., Problem]
MakeEngine = Callable[..., SlotEngine]


class CodedChat(Chat):
    """A chat that reads a tool call into any tokens, so that a random model uses its tools."""

    CALLS = ('"look", "arguments": {"n": 2}', '"test"', '"fly"', '"look", "arguments": {"n": 5}', '"submit"')

    @property
    def stop_ids(self) -> frozenset[int]:  # type: ignore[override]
        return frozenset(range(2, 768, 6))

    def decode(self, ids: Sequence[int]) -> str:
        if sum(ids) % 9 == 0:
            return "no call"
        return "<tool_call>{" + f'"name": {self.CALLS[sum(ids) % 5]}' + "}</tool_call>"


@pytest.fixture
def coded(chat: Chat) -> CodedChat:
    return CodedChat(chat.tokenizer)


@pytest.fixture
def jobs(make_problem: MakeProblem) -> list[Job]:
    problems = [make_problem(name, turns=5, tokens=60) for name in ("a", "bb", "ccc", "dddd")]
    return [Job(p, p.id, i, 100 * n + i, 7, "run") for n, p in enumerate(problems) for i in range(4)]


def settled(rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
    """Rollouts without their timings."""
    result = []
    for rollout in rollouts:
        row = rollout.model_dump()
        del row["trajectory"]["seconds"]
        for turn in row["trajectory"]["turns"]:
            del turn["sample_seconds"], turn["tool_seconds"]
            for answer in turn["answers"]:
                del answer["seconds"]
        result.append(row)
    return result


def go(jobs: Sequence[Job], engine: Any, chat: Any, session: Any, **options: Any) -> list[Rollout]:
    how = {name: options.pop(name) for name in tuple(options) if name in RolloutConfig.model_fields}
    settings: dict[str, Any] = {"policy_version": V, "sampling": Sampling()}
    config = RolloutConfig(**({"capacity": 6, "max_turn_tokens": 12} | how))
    return run_sessions(jobs, engine, chat, open_session=session, config=config, **(settings | options))


def test_the_tools_timing_changes_nothing(
    jobs: list[Job], make_engine: MakeEngine, coded: CodedChat, playground: Any
) -> None:
    clock = random.Random(5)
    plain = go(jobs, make_engine(), coded, playground, tool_workers=1)
    slow = go(
        jobs, make_engine(), coded, lambda p: playground(p, lambda: clock.uniform(0, 0.02)), tool_workers=5
    )  # fmt: skip
    assert settled(plain) == settled(slow)
    assert [r.trajectory.id for r in plain] == [job.trajectory_id for job in jobs]
    assert {r.trajectory.status for r in plain} >= {"completed", "out_of_turns"}
    assert len({len(r.trajectory.turns) for r in plain}) > 2
    assert sum(r.trajectory.tool_errors for r in plain) > 0


def test_results_that_join_when_they_are_there_wait_for_no_slower_tool(
    jobs: list[Job], make_engine: MakeEngine, coded: CodedChat, playground: Any
) -> None:
    """The first job's tools wait until every other session has ended: joining in lockstep would never end."""
    ended, others = threading.Event(), len(jobs) - 1

    def session(problem: Problem) -> Any:
        opened = playground(problem)
        if len(heard) == 0 and not started:
            started.append(problem.id)
            call = opened.call
            opened.call = lambda given: (ended.wait(60), call(given))[1]
        return opened

    started: list[str] = []
    heard: list[str] = []

    def on_done(rollout: Rollout) -> None:
        heard.append(rollout.trajectory.id)
        if len(heard) == others:
            ended.set()

    rollouts = go(jobs, make_engine(), coded, session, tool_latency_polls=0, tool_workers=2, on_done=on_done)
    assert heard[-1] == jobs[0].trajectory_id
    plain = go(jobs, make_engine(), coded, playground)
    assert [r.segments[0].token_ids for r in rollouts] == [r.segments[0].token_ids for r in plain]


def test_calls_that_go_together_go_as_one_batch_and_change_nothing_else(
    jobs: list[Job], make_engine: MakeEngine, coded: CodedChat, playground: Any
) -> None:
    sizes: list[int] = []

    class Together(playground):  # type: ignore[misc]
        """Sessions on problems with names of one length share their calls."""

        @property
        def batch(self) -> int:
            return len(self.problem.id) % 2

        def call_together(self, calls: Sequence[tuple[Any, ToolCall]]) -> list[ToolResult]:
            assert len({session.batch for session, _ in calls}) == 1
            sizes.append(len(calls))
            return [session.call(call) for session, call in calls]

    apart = go(jobs, make_engine(slots=16), coded, playground, capacity=16)
    together = go(jobs, make_engine(slots=16), coded, Together, capacity=16)
    assert settled(together) == settled(apart)
    assert sum(sizes) == sum(len(turn.answers) for rollout in apart for turn in rollout.trajectory.turns)
    assert max(sizes) > 2


def test_a_batch_that_fails_fails_for_all_its_sessions(
    jobs: list[Job], make_engine: MakeEngine, coded: CodedChat, playground: Any
) -> None:
    class Broken(playground):  # type: ignore[misc]
        batch = 0

        def call_together(self, calls: Sequence[tuple[Any, ToolCall]]) -> list[ToolResult]:
            raise SandboxError("the simulator is gone")

    rollouts = go(jobs, make_engine(), coded, Broken, retries=1)
    called = [rollout.trajectory for rollout in rollouts if rollout.trajectory.status == "sandbox_error"]
    assert called and all(trajectory.detail == "the simulator is gone" for trajectory in called)
    assert {rollout.trajectory.status for rollout in rollouts} <= {"sandbox_error", "out_of_turns", "out_of_tokens"}


def test_logprobs_of_whole_rollouts_equal_a_teacher_forced_forward_at_every_sampled_position(
    jobs: list[Job], make_engine: MakeEngine, coded: CodedChat, playground: Any
) -> None:
    engine = make_engine()
    after_tools = 0
    for rollout in go(jobs, engine, coded, playground):
        (segment,) = rollout.segments
        forced = [0.0, *engine.teacher_force(V, segment.token_ids)]
        for i, mask in enumerate(segment.loss_mask):
            if mask:
                assert abs(segment.rollout_logprobs[i] - forced[i]) < 1e-5
                after_tools += segment.turn_index[i] > 0 and not segment.loss_mask[i - 1]
        assert sum(segment.loss_mask) == rollout.trajectory.sampled_tokens <= 60
    assert after_tools >= 20


def test_what_an_agent_samples_does_not_depend_on_the_capacity(
    jobs: list[Job], make_engine: MakeEngine, coded: CodedChat, playground: Any
) -> None:
    few = go(jobs, make_engine(slots=2), coded, playground, capacity=2)
    many = go(jobs, make_engine(slots=16), coded, playground, capacity=16, tool_latency_polls=1)
    scarce = go(jobs, make_engine(slots=3), coded, playground, capacity=16)
    tokens = [[r.segments[0].token_ids for r in rollouts] for rollouts in (few, many, scarce)]
    assert tokens[0] == tokens[1] == tokens[2]


def test_a_killed_run_goes_on_from_its_journal(
    jobs: list[Job], make_engine: MakeEngine, coded: CodedChat, playground: Any, tmp_path: Path
) -> None:
    unbroken = go(jobs, make_engine(), coded, playground)

    class Killed(Exception):
        pass

    heard: list[str] = []

    def kill_after(n: int) -> Callable[[Rollout], None]:
        def on_done(rollout: Rollout) -> None:
            heard.append(rollout.trajectory.id)
            if len(heard) == n:
                raise Killed

        return on_done

    with pytest.raises(Killed):
        go(jobs, make_engine(), coded, playground, journal=Journal(tmp_path / "j"), on_done=kill_after(5))
    opened: list[str] = []

    def counting(problem: Problem) -> Any:
        opened.append(problem.id)
        return playground(problem)

    heard.clear()
    kept = Journal(tmp_path / "j")
    assert len(kept) == 5
    resumed = go(jobs, make_engine(), coded, counting, journal=kept, on_done=kill_after(99))
    assert len(opened) == len(jobs) - 5
    assert sorted(heard) == sorted(job.trajectory_id for job in jobs)
    assert [r.trajectory.id for r in resumed] == [job.trajectory_id for job in jobs]
    assert [r.segments[0].token_ids for r in resumed] == [r.segments[0].token_ids for r in unbroken]
    assert len((tmp_path / "j").read_bytes().splitlines()) == len(jobs)
    again = go(jobs, make_engine(), coded, counting, journal=Journal(tmp_path / "j"))
    assert again == resumed
    assert len(opened) == len(jobs) - 5


def test_another_policys_journal_is_refused(
    jobs: list[Job], make_engine: MakeEngine, coded: CodedChat, playground: Any, tmp_path: Path
) -> None:
    go(jobs[:2], make_engine(), coded, playground, journal=Journal(tmp_path / "j"))
    with pytest.raises(ValueError, match="its own journal"):
        go(jobs[:2], make_engine(), coded, playground, journal=Journal(tmp_path / "j"), policy_version="policy-00001")


class Breaking:
    """A session whose tools fail with `error` in the first `times` sessions of a problem."""

    def __init__(self, playground: Any, error: Exception, times: int) -> None:
        self.playground, self.error, self.times = playground, error, times
        self.opened: dict[str, int] = {}

    def __call__(self, problem: Problem) -> Any:
        session = self.playground(problem)
        attempt = self.opened[problem.id] = self.opened.get(problem.id, 0) + 1
        if problem.id == "bb" and attempt <= self.times:

            def broken(call: Any) -> Any:
                raise self.error

            session.call = broken
        return session


@pytest.mark.parametrize(
    ("error", "status"),
    [(SandboxError("sandbox gone"), "sandbox_error"), (OSError("disk full"), "tool_error")],
    ids=["sandbox", "tool"],
)
def test_infrastructure_failures_are_retried_then_recorded_with_their_status(
    make_problem: MakeProblem, make_engine: MakeEngine, coded: CodedChat, playground: Any, error: Exception, status: str
) -> None:
    jobs = [
        Job(make_problem(name, turns=5, tokens=60), name, 0, i, 7, "run") for i, name in enumerate(("a", "bb", "c"))
    ]
    good = go(jobs, make_engine(), coded, playground)
    mended = go(jobs, make_engine(), coded, Breaking(playground, error, 2))
    assert [r.segments[0].token_ids for r in mended] == [r.segments[0].token_ids for r in good]
    breaking = Breaking(playground, error, 99)
    lost = go(jobs, make_engine(), coded, breaking)
    assert [r.trajectory.status for r in lost] == [good[0].trajectory.status, status, good[2].trajectory.status]
    assert lost[1].trajectory.outcome is None
    assert not lost[1].trajectory.scorable
    assert str(error) in lost[1].trajectory.detail
    assert breaking.opened == {"a": 1, "bb": 3, "c": 1}


class Faulty:
    """The real engine, but some polls and submits raise."""

    def __init__(self, engine: SlotEngine, *, polls: tuple[int, ...] = (), full: str = "") -> None:
        self._engine, self._polls, self._full, self._n = engine, polls, full, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: SampleRequest) -> None:
        if self._full and request.session.startswith(self._full):
            raise ContextFull("no room", (request.session,))
        self._engine.submit(request)

    def poll(self) -> list[tuple[str, Completion]]:
        self._n += 1
        if self._n in self._polls:
            raise EngineError("engine hiccup")
        return self._engine.poll()


def test_an_engine_failure_retries_what_it_held_and_loses_nothing(
    jobs: list[Job], make_engine: MakeEngine, coded: CodedChat, playground: Any
) -> None:
    good = go(jobs, make_engine(), coded, playground)
    mended = go(jobs, Faulty(make_engine(), polls=(3, 30)), coded, playground)
    assert [r.segments[0].token_ids for r in mended] == [r.segments[0].token_ids for r in good]
    lost = go(jobs, Faulty(make_engine(), polls=tuple(range(1, 10_000))), coded, playground)
    assert {r.trajectory.status for r in lost} == {"engine_error"}
    assert {r.trajectory.detail for r in lost} == {"engine hiccup"}
    assert all(r.segments == () and r.trajectory.outcome is None for r in lost)


class Full:
    """The real engine, with a KV-cache that is nearly full all the time; counts the sessions it holds at once."""

    def __init__(self, engine: SlotEngine) -> None:
        self._engine, self._held, self.most = engine, set[str](), list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def pressure(self) -> Pressure:
        self.most.append(len(self._held))
        return Pressure(0.95, 0)

    def submit(self, request: SampleRequest) -> None:
        self._held.add(request.session)
        self._engine.submit(request)

    def close_session(self, session: str) -> None:
        self._held.discard(session)
        self._engine.close_session(session)


def test_sessions_in_flight_follow_the_kv_cache_and_all_are_made(
    jobs: list[Job], make_engine: MakeEngine, coded: CodedChat, playground: Any
) -> None:
    engine = Full(make_engine())
    rollouts = go(jobs, engine, coded, playground, capacity=6)
    assert max(engine.most) == 6 and set(engine.most[-8:]) <= {0, 1}
    assert [r.segments[0].token_ids for r in rollouts] == [
        r.segments[0].token_ids for r in go(jobs, make_engine(), coded, playground)
    ]


def test_a_full_context_ends_the_rollout_as_out_of_tokens(
    jobs: list[Job], make_engine: MakeEngine, coded: CodedChat, playground: Any
) -> None:
    rollouts = go(jobs, Faulty(make_engine(), full=jobs[3].trajectory_id), coded, playground)
    assert (rollouts[3].trajectory.status, rollouts[3].trajectory.detail) == ("out_of_tokens", "no room")


def test_a_programming_error_stops_the_run_and_frees_the_engine(
    jobs: list[Job], make_engine: MakeEngine, coded: CodedChat, playground: Any
) -> None:
    engine = make_engine()
    with pytest.raises(KeyError, match="a bug"):
        go(jobs, engine, coded, Breaking(playground, KeyError("a bug"), 99))
    engine.drop_adapter(V)


def test_jobs_are_told_apart(jobs: list[Job], make_engine: MakeEngine, coded: CodedChat, playground: Any) -> None:
    with pytest.raises(ValueError, match="one trajectory id"):
        go([jobs[0], jobs[0]], make_engine(), coded, playground)
    assert go([], make_engine(), coded, playground) == []
    assert jobs[1].trajectory_id == "run/00007/a/1"
