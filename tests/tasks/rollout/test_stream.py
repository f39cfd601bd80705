"""Rollouts across iterations on the real engine: carried over to newer weights, within bounds, each counted once."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from data_contracts.records import Problem, Rollout, Sampling
from models.chat import Chat
from tasks.rollout.agent import Job
from tasks.rollout.config import RolloutConfig
from tasks.rollout.scheduler import Scheduler, agents
from tasks.rollout.slot_engine import SlotEngine
from tasks.rollout.stream import Stream

BATCH = 8
MakeProblem = Callable[..., Problem]


class Talkative(Chat):
    """A chat that reads a call of `look` into any tokens, but submits at the end: sessions of many turns."""

    @property
    def stop_ids(self) -> frozenset[int]:  # type: ignore[override]
        return frozenset(range(2, 768, 6))

    def decode(self, ids: Sequence[int]) -> str:
        name = "submit" if sum(ids) % 7 == 0 else "look"
        return "<tool_call>{" + f'"name": "{name}"' + "}</tool_call>"


@pytest.fixture
def talkative(chat: Chat) -> Talkative:
    return Talkative(chat.tokenizer)


@pytest.fixture
def engine(make_engine: Callable[..., SlotEngine]) -> SlotEngine:
    """Serves versions whose weights differ; a version's digest is its folder's name."""
    base = make_engine()._models["policy-00000"]

    def model_of(path: Path | None) -> Any:
        model = copy.deepcopy(base)
        torch.manual_seed(int(str(path)[-1]))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        return model.eval()

    return SlotEngine(model_of, lambda path: f"digest-{str(path)[-1]}", slots=16)


def jobs_of(make_problem: MakeProblem, iteration: int) -> list[Job]:
    problems = [make_problem(name, turns=9, tokens=70) for name in ("a", "bb")]
    return [
        Job(problem, f"{iteration}/{problem.id}", index, 1000 * iteration + 10 * place + index, iteration, "run")
        for place, problem in enumerate(problems)
        for index in range(BATCH // 2)
    ]


class Run:
    """A stream over the engine, its journals in a folder; `begun` counts the sessions that were opened."""

    def __init__(self, engine: SlotEngine, chat: Chat, session: Any, folder: Path, **how: int) -> None:
        self.engine, self.folder, self.begun = engine, folder, 0
        config = RolloutConfig(**({"capacity": 6, "max_turn_tokens": 12, "max_staleness": 1} | how))

        def opened(problem: Problem) -> Any:
            self.begun += 1
            return session(problem)

        self.scheduler = Scheduler(engine, agents(chat, opened, Sampling(), config), config)
        self.stream = Stream(self.scheduler, lambda n: folder / f"{n}.jsonl", config.max_staleness)

    def serve(self, number: int) -> None:
        self.engine.load_adapter(f"policy-{number:05d}", Path(f"adapter-{number}"))


def test_what_is_unfinished_goes_on_under_the_next_version_and_each_token_keeps_its_own(
    engine: SlotEngine, talkative: Talkative, playground: Any, make_problem: MakeProblem, tmp_path: Path
) -> None:
    run = Run(engine, talkative, playground, tmp_path)
    batches: list[list[Rollout]] = []
    with run.scheduler:
        for number in range(4):
            run.serve(number)
            ahead = jobs_of(make_problem, number + 1) if number < 3 else []
            batches.append(run.stream.collect(number, jobs_of(make_problem, number), ahead))
            assert run.begun <= (number + 2) * BATCH
        assert run.scheduler.idle
    mixed = behind = 0
    for number, batch in enumerate(batches):
        assert [r.trajectory.id for r in batch] == [job.trajectory_id for job in jobs_of(make_problem, number)]
        for rollout in batch:
            trajectory, (segment,) = rollout.trajectory, rollout.segments
            versions = [turn.policy_version for turn in trajectory.turns]
            assert versions == sorted(versions)
            assert set(versions) <= {f"policy-{n:05d}" for n in (max(0, number - 1), number)}
            assert all(turn.policy_digest == f"digest-{turn.policy_version[-1]}" for turn in trajectory.turns)
            assert trajectory.policy_version == versions[-1]
            assert sum(segment.loss_mask) == trajectory.sampled_tokens <= 70
            numbers = segment.policy_numbers
            assert numbers is not None, "also where one version sampled all of it: it may be another than the batch's"
            assert {n for n in numbers if n >= 0} == {int(version[-1]) for version in versions}
            mixed += len(set(versions)) > 1
            behind += set(versions) == {f"policy-{number - 1:05d}"}
            forced = {v: [0.0, *engine.teacher_force(v, segment.token_ids)] for v in set(versions)}
            for t, sampled in enumerate(segment.loss_mask):
                if sampled:
                    assert abs(segment.rollout_logprobs[t] - forced[f"policy-{numbers[t]:05d}"][t]) < 1e-5
    assert mixed >= 3 and behind >= 1
    assert all(len((tmp_path / f"{n}.jsonl").read_bytes().splitlines()) == BATCH for n in range(4))


def test_noise_is_not_repeated_under_the_next_version(make_problem: MakeProblem, talkative: Talkative) -> None:
    (job, *_) = jobs_of(make_problem, 0)

    class Quiet:
        files: dict[str, str] = {}  # noqa: RUF012

        def messages(self) -> list[dict[str, str]]:
            return [{"role": "user", "content": "q"}]

        def tools(self) -> list[Any]:
            return []

    start = agents(talkative, lambda problem: Quiet(), Sampling(), RolloutConfig())  # type: ignore[arg-type, return-value]
    agent = start(job, "s#0", "policy-00000")
    first = agent.request()
    agent.move_to("policy-00001")
    second = agent.request()
    assert (first.session, second.session) == ("s#0", "s#0@policy-00001")
    assert second.policy_version == "policy-00001"
    assert first.seed == job.seed != second.seed
    assert second.max_tokens == first.max_tokens


def test_without_staleness_nothing_is_begun_early(
    engine: SlotEngine, talkative: Talkative, playground: Any, make_problem: MakeProblem, tmp_path: Path
) -> None:
    run = Run(engine, talkative, playground, tmp_path, max_staleness=0)
    with run.scheduler:
        for number in range(2):
            run.serve(number)
            batch = run.stream.collect(number, jobs_of(make_problem, number))
            assert run.scheduler.idle and run.begun == (number + 1) * BATCH
            assert all(segment.policy_numbers is None for rollout in batch for segment in rollout.segments)
            assert {t.policy_version for r in batch for t in r.trajectory.turns} == {f"policy-{number:05d}"}


def test_a_killed_stream_makes_again_only_what_was_not_finished(
    engine: SlotEngine, talkative: Talkative, playground: Any, make_problem: MakeProblem, tmp_path: Path
) -> None:
    first = Run(engine, talkative, playground, tmp_path)
    first.serve(0)
    with first.scheduler:
        before = first.stream.collect(0, jobs_of(make_problem, 0), jobs_of(make_problem, 1))
    early = len((tmp_path / "1.jsonl").read_bytes().splitlines())
    assert early > 0, "sessions ahead have to have ended for this to show anything"
    second = Run(engine, talkative, playground, tmp_path)
    second.serve(1)
    with second.scheduler:
        again = second.stream.collect(0, jobs_of(make_problem, 0))
        assert (again, second.begun) == (before, 0)
        heard: list[Rollout] = []
        batch = second.stream.collect(1, jobs_of(make_problem, 1), on_done=heard.append)
    assert sorted(r.trajectory.id for r in heard) == sorted(r.trajectory.id for r in batch)
    assert second.begun == BATCH - early
    assert len({r.trajectory.id for r in batch}) == BATCH


def test_sessions_ahead_go_on_while_another_works(
    engine: SlotEngine, talkative: Talkative, playground: Any, make_problem: MakeProblem, tmp_path: Path
) -> None:
    run = Run(engine, talkative, playground, tmp_path)
    run.serve(0)
    with run.scheduler:
        run.stream.collect(0, jobs_of(make_problem, 0), jobs_of(make_problem, 1))
        assert not run.scheduler.idle
        with run.stream.going_on():
            while not run.scheduler.idle:
                time.sleep(0.01)
        assert len((tmp_path / "1.jsonl").read_bytes().splitlines()) == BATCH


def test_an_error_of_sessions_ahead_is_raised_when_the_other_work_is_done(
    engine: SlotEngine, talkative: Talkative, playground: Any, make_problem: MakeProblem, tmp_path: Path
) -> None:
    met = threading.Event()
    run = Run(engine, talkative, playground, tmp_path)
    run.serve(0)
    with run.scheduler:
        run.stream.collect(0, jobs_of(make_problem, 0), jobs_of(make_problem, 1))

        def poll() -> Any:
            met.set()
            raise KeyError("a bug")

        engine.poll = poll  # type: ignore[method-assign]
        with pytest.raises(KeyError, match="a bug"), run.stream.going_on():
            assert met.wait(10)


def test_collecting_while_others_go_on_has_the_engine_alone_and_loses_none(
    engine: SlotEngine, talkative: Talkative, playground: Any, make_problem: MakeProblem, tmp_path: Path
) -> None:
    run = Run(engine, talkative, playground, tmp_path)
    jobs, ahead = jobs_of(make_problem, 0), jobs_of(make_problem, 1)
    main, ticks = threading.get_ident(), []
    tick = run.scheduler.tick

    def noted() -> Any:
        ticks.append(threading.get_ident())
        return tick()

    run.scheduler.tick = noted  # type: ignore[method-assign]
    with run.scheduler:
        run.serve(0)
        run.stream.collect(0, jobs[:6], ahead)
        assert not run.scheduler.idle
        with run.stream.going_on(), run.stream.alone():
            time.sleep(0.05)
            ticks.clear()
            more = run.stream.collect(0, jobs[6:])
            assert set(ticks) == {main}
            assert [rollout.trajectory.id for rollout in more] == [job.trajectory_id for job in jobs[6:]]
        run.serve(1)
        later = run.stream.collect(1, ahead)
    assert [rollout.trajectory.id for rollout in later] == [job.trajectory_id for job in ahead]
    assert all(len((tmp_path / f"{n}.jsonl").read_bytes().splitlines()) == BATCH for n in range(2))
