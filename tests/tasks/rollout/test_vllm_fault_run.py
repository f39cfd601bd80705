"""One batch in which everything goes wrong at once, on two real servers; full weights; then their owner is killed.

Tools hang, print a gigabyte, fork without end; sessions never come to submit; a server is killed in mid-batch. Each
session ends typed, each job is there once, and nothing is left running. These tests end the servers, so they come last.
"""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from data_contracts.records import Check, Limits, Problem, Rollout, ToolCall
from models.fingerprint import digest_folder
from tasks.curriculum.generator import generate
from tasks.rollout.agent import Job
from tasks.rollout.engine import Completion, EngineError, SampleRequest
from tasks.rollout.environments import open_session
from tasks.rollout.environments.base import Session, ToolResult
from tasks.rollout.environments.project import ProjectSession
from tasks.rollout.environments.repair import TOOLS
from tasks.rollout.journal import Journal
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.vllm_engine import VllmEngine, trainers_logprobs

VERSION = "policy-00001"
BY_ITSELF = {"completed", "out_of_turns", "out_of_tokens"}
BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
TRAPS = {
    "hangs": (("sleep", "600"), "ended by timeout"),
    "prints-a-gigabyte": (("head", "-c", "1000000000", "/dev/zero"), "ended by output"),
    "forks": (("python", "-c", BOMB), "ended by error"),
}
"""The check that a project brings along, and what the agent is told of it."""
Descendants = Callable[[int], set[int]]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm"),
]


class Project(ProjectSession):
    """A workspace under the names that the starter calls tools by: `test` is its check, and it has one file."""

    def tools(self) -> list[dict[str, Any]]:
        return TOOLS

    def call(self, call: ToolCall) -> ToolResult:
        if call.name == "test":
            return super().call(ToolCall(name="run"))
        path = {} if call.name == "submit" else {"path": next(iter(self.files))}
        return super().call(ToolCall(name=call.name, arguments={**call.arguments, **path}))


def opened(problem: Problem, pool: WarmPool) -> Session:
    return Project(problem, pool) if problem.environment == "workspace" else open_session(problem, pool)


def trap(name: str) -> Problem:
    found = generate(len(name), "train", "short", 1)[0]
    check = (Check(name=name, command=TRAPS[name][0]),)
    return found.model_copy(
        update={"id": name, "environment": "workspace", "visible": check, "hidden": check, "limits": Limits(seconds=1)}
    )


def endless(name: str, **limits: Any) -> Problem:
    """A problem whose sessions are over before they can submit."""
    found = generate(len(name), "train", "short", 1)[0]
    return found.model_copy(update={"id": name, "limits": Limits(**limits)})


class Watched(VllmEngine):
    """The engine, noting the sessions of failed turns."""

    lost: tuple[str, ...] = ()
    why = ""

    def poll(self) -> list[tuple[str, Completion]]:
        try:
            return super().poll()
        except EngineError as error:
            self.lost, self.why = (*self.lost, *error.sessions), str(error)
            raise


@pytest.fixture(scope="module")
def engine(served: Any) -> Iterator[Watched]:
    with closing(Watched.from_base(served.base, served.endpoints, served.config, served.restart)) as engine:
        engine.load_adapter(VERSION, served.adapter(VERSION, 0.02))
        yield engine


def observed(rollouts: list[Rollout]) -> str:
    return "\n".join(turn.observation for rollout in rollouts for turn in rollout.trajectory.turns)


def test_all_at_once_loses_nothing_and_leaves_nothing(
    served: Any, engine: Watched, make_jobs: Callable[..., list[Job]], descendants: Descendants, tmp_path: Path
) -> None:
    second, before = served.servers[1], descendants(os.getpid())
    odd = [*map(trap, TRAPS), endless("out-of-turns", turns=1), endless("out-of-tokens", tokens=3)]
    jobs = [Job(problem, problem.id, i, 100 + i, 0, "faults") for i in range(4) for problem in odd]
    jobs += make_jobs(4, 4, 6)
    done: list[str] = []

    def on_done(rollout: Rollout) -> None:
        done.append(rollout.trajectory.id)
        if len(done) == 10:
            second.kill()

    journal = Journal(tmp_path / "journal.jsonl")
    with WarmPool(2, "agent") as pool:
        rollouts = served.sessions(
            engine, pool, jobs, VERSION, 1.0, open_session=opened, journal=journal, on_done=on_done
        )
        assert pool.run(["python", "-c", "print('in order')"], {}, Limits()).stdout == "in order\n"

    names = [job.trajectory_id for job in jobs]
    assert [rollout.trajectory.id for rollout in rollouts] == names
    assert sorted(done) == sorted(names)
    assert Counter(Journal(journal.path).ids) == Counter(names)
    assert len(journal.path.read_text().splitlines()) == len(names)
    for rollout in rollouts:
        assert rollout.trajectory.status in BY_ITSELF
        assert sum(sum(segment.loss_mask) for segment in rollout.segments) == rollout.trajectory.sampled_tokens
        assert sum(turn.completion_tokens for turn in rollout.trajectory.turns) == rollout.trajectory.sampled_tokens

    of = {problem.id: [r for r in rollouts if r.trajectory.problem_id == problem.id] for problem in odd}
    for name, (_, told) in TRAPS.items():
        assert told in observed(of[name])
        assert max(turn.tool_seconds for r in of[name] for turn in r.trajectory.turns) < 30
    for status in ("out_of_turns", "out_of_tokens"):
        ended = [(r.trajectory.status, r.trajectory.submitted) for r in of[status.replace("_", "-")]]
        assert ended == [(status, False)] * 4

    assert len(set(engine.lost)) == len(engine.lost) > 0
    assert {name.rpartition("#")[0] for name in engine.lost} <= set(names)
    assert f"the vLLM server {second.url} is lost" in engine.why
    assert f"the end of {second.log}" in engine.why
    eventually_gone(lambda: second.processes)
    assert descendants(os.getpid()) < before


def furthest(served: Any, rollouts: list[Rollout], weights: Path) -> float:
    """The largest difference to the trainer's log-probabilities, over every sampled token at temperature 0.7."""
    gaps = []
    for rollout in rollouts:
        assert rollout.trajectory.status in BY_ITSELF
        assert {turn.policy_digest for turn in rollout.trajectory.turns} == {digest_folder(weights)}
        for segment in rollout.segments:
            right = [0.0, *served.logprobs(weights, segment.token_ids, 0.7)]
            gaps += [abs(right[t] - segment.rollout_logprobs[t]) for t, mask in enumerate(segment.loss_mask) if mask]
    assert len(gaps) == sum(rollout.trajectory.sampled_tokens for rollout in rollouts) > 100
    return max(gaps)


def test_full_weights_take_the_place_of_what_a_server_holds(
    served: Any, engine: Watched, make_jobs: Callable[..., list[Job]]
) -> None:
    weights, prompt = served.whole("policy-00005", served.adapter(VERSION, 0.02)), list(range(5, 300))
    engine.submit(SampleRequest("under way", VERSION, prompt, 60))
    assert engine.load_adapter("policy-00005", weights) == digest_folder(weights)
    ((session, turn),) = engine.poll()
    assert (session, turn.policy_version, len(turn.token_ids)) == ("under way", VERSION, 60)
    engine.close_session(session)
    with pytest.raises(EngineError, match=f"{VERSION} is not loaded"):
        engine.submit(SampleRequest("s", VERSION, [5], 1))
    engine.drop_adapter(VERSION)

    engine.submit(SampleRequest("s", "policy-00005", prompt, 8))
    while not (ended := engine.poll()):
        pass
    assert ended[0][1].cached_tokens == 0, "keys and values of the old weights"
    with WarmPool(2, "agent") as pool:
        rollouts = served.sessions(engine, pool, make_jobs(3, 4, 8), "policy-00005", 0.7)
    assert furthest(served, rollouts, weights) < 1e-4


@pytest.fixture(scope="module")
def doubting(served: Any) -> Iterator[tuple[VllmEngine, Path, Path]]:
    """An engine, the weights that its reload reads, and the trainer's, over which servers are started in its place."""
    right = trainers_logprobs(served.base)
    stale = served.whole("policy-00006", served.adapter(VERSION, 0.02))
    trained = served.whole("policy-00007", served.adapter("policy-00002", 0.03))
    with closing(
        VllmEngine(
            served.endpoints[:1],
            lambda path, given, temperatures: right(path and trained, given, temperatures),
            lambda path: digest_folder(trained),
            vocabulary=768,
            restart=lambda weights: served.restart(trained),
            reload=True,
        )
    ) as engine:
        yield engine, stale, trained


def test_servers_restart_for_full_weights_that_a_reload_did_not_bring(
    served: Any,
    doubting: tuple[VllmEngine, Path, Path],
    make_jobs: Callable[..., list[Job]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (engine, stale, trained), before = doubting, {server.url for server in served.servers}
    assert engine.load_adapter("policy-00007", stale) == digest_folder(trained)
    assert not before & {server.url for server in served.servers}
    said = [record.getMessage() for record in caplog.records if "full weights" in record.getMessage()]
    assert len(said) == 2
    assert "can not be put in place here" in said[0] and "log-probabilities of given tokens are off" in said[0]
    assert "prefix caches are lost" in said[1]
    with WarmPool(2, "agent") as pool:
        rollouts = served.sessions(engine, pool, make_jobs(3, 4, 8), "policy-00007", 0.7)
    assert furthest(served, rollouts, trained) < 1e-4


def test_servers_end_with_a_killed_owner_and_then_every_session_is_an_engine_error(
    served: Any, doubting: tuple[VllmEngine, Path, Path], make_jobs: Callable[..., list[Job]]
) -> None:
    engine, stale, _ = doubting
    engine.load_adapter("policy-00007", stale)
    for server in served.servers:
        assert any("VLLM::EngineCore" in line for line in server.processes)
    os.kill(served.owner.pid, signal.SIGKILL)
    for server in served.servers:
        eventually_gone(lambda server=server: server.processes)
    with WarmPool(2, "agent") as pool:
        ended = served.sessions(engine, pool, make_jobs(2, 2, 7), "policy-00007", 1.0)
    assert {rollout.trajectory.status for rollout in ended} == {"engine_error"}
    assert all(math.isfinite(rollout.trajectory.seconds) and not rollout.segments for rollout in ended)
    with pytest.raises(EngineError, match=r"(?s)no vLLM server is left; .*the end of .*/vllm-[01]\.log") as caught:
        engine.submit(SampleRequest("s", "policy-00007", [5], 1))
    assert caught.value.sessions == ("s",)


def eventually_gone(left: Callable[[], list[str]], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while found := left():
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
