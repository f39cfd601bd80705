"""One batch in which everything goes wrong at once, on two real servers; then their owner is killed.

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
from tasks.rollout.vllm_engine import VllmEngine

VERSION, NEXT = "policy-00001", "policy-00002"
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
    with closing(Watched.from_base(served.base, served.endpoints, served.config)) as engine:
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
    assert descendants(os.getpid()) == before


def test_without_a_server_every_session_is_an_engine_error(
    served: Any, engine: Watched, make_jobs: Callable[..., list[Job]]
) -> None:
    first = served.servers[0]
    assert engine.load_adapter(NEXT, served.adapter(NEXT, 0.03)) == digest_folder(served.adapter(NEXT, 0.03))
    os.kill(served.owner.pid, signal.SIGKILL)
    eventually_gone(lambda: first.processes)
    with WarmPool(2, "agent") as pool:
        ended = served.sessions(engine, pool, make_jobs(2, 2, 7), NEXT, 1.0)
    assert {rollout.trajectory.status for rollout in ended} == {"engine_error"}
    assert all(math.isfinite(rollout.trajectory.seconds) and not rollout.segments for rollout in ended)
    with pytest.raises(EngineError, match=f"(?s)no vLLM server is left; .*the end of {first.log}") as caught:
        engine.submit(SampleRequest("s", NEXT, [5], 1))
    assert caught.value.sessions == ("s",)


def eventually_gone(left: Callable[[], list[str]], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while found := left():
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
