"""Rollout throughput: the scheduler with real, instant and slow tools, as shares of what the engine alone can do.

    python tests/benchmarks/rollout.py [--model FOLDER] [--sessions N] [--in-flight N] [--repeats N] [--vllm]
                                       [--trl PYTHON] [--memory N]

First sessions of `repair` are made with their real tools, and kept. Then, in turn and from the same noise:
- ceiling: the engine alone, fed with each recorded context as soon as the turn before it has ended;
- instant: the scheduler, its tools answering from the record at once;
- slow: the same, each answer after 0.2 s, one thread a session;
- real: the scheduler with the sandboxes.
Every side samples the same tokens (instant and real are checked to the bit). Prints sessions and tokens a second and
the ratio to the ceiling of the same repeat, as the median over repeats. `--vllm` adds the scheduler over one vLLM
server; `--trl` TRL's GRPO trainer with tools (`trl_side.py` says how to make a Python that has it), in its turn of each
repeat; `--memory` plays so many sessions more and prints the resident memory on the way.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from data_contracts.records import Problem, Rollout, Sampling, ToolCall
from models.chat import Chat
from models.policy import Base, load_base
from tasks.curriculum.generator import generate
from tasks.rollout.agent import Job
from tasks.rollout.config import RolloutConfig
from tasks.rollout.engine import Engine, SampleRequest
from tasks.rollout.environments import open_session
from tasks.rollout.environments.base import ToolResult
from tasks.rollout.jobs import jobs_for
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.scheduler import run_sessions
from tasks.rollout.slot_engine import SlotEngine

ROOT = Path(__file__).parents[2]
VERSION = "policy-00000"
Answers = dict[str, list[list[ToolResult]]]
"""What the calls of recorded sessions came back with, by problem, in the order of its jobs."""
SLOW = 0.2
GROUP = 8
TRL_SESSIONS = 256
"""TRL makes so many of the sessions: all in step, so that its rate does not depend on how many there are."""


class Side(NamedTuple):
    """A way to make the sessions, and what it took."""

    name: str
    seconds: float
    tokens: int
    sessions: int


class Recorded:
    """A session that answers from the record: `answers` are the results of its calls, in order."""

    def __init__(self, problem: Problem, answers: Sequence[ToolResult], seconds: float) -> None:
        self.problem, self.files, self.visible = problem, dict(problem.files), None
        self._answers, self._seconds = iter(answers), seconds

    def messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self.problem.prompt}]

    def tools(self) -> list[dict[str, Any]]:
        return []

    def call(self, call: ToolCall) -> ToolResult:
        if self._seconds:
            time.sleep(self._seconds)
        return next(self._answers)


class Recorder:
    """A real session that keeps what its calls came back with."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.answers: list[ToolResult] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def call(self, call: ToolCall) -> ToolResult:
        result: ToolResult = self._session.call(call)
        self.answers.append(result)
        return result


class Bench:
    """One model, its jobs, and a fresh engine for every measurement; `in_flight` sessions at a time on every side."""

    def __init__(self, base: Base, jobs: Sequence[Job], pool: WarmPool, in_flight: int) -> None:
        self.base, self.jobs, self.pool, self.in_flight = base, jobs, pool, in_flight
        self.chat = Chat(base.tokenizer)

    def engine(self) -> SlotEngine:
        engine = SlotEngine.from_base(self.base, slots=self.in_flight)
        engine.load_adapter(VERSION, None)
        return engine

    def schedule(self, engine: Engine, opened: Callable[[Problem], Any], **how: Any) -> tuple[float, list[Rollout]]:
        config = RolloutConfig(capacity=self.in_flight, **how)
        started = time.perf_counter()
        rollouts = run_sessions(
            self.jobs,
            engine,
            self.chat,
            open_session=opened,
            policy_version=VERSION,
            sampling=Sampling(),
            config=config,
        )
        return time.perf_counter() - started, rollouts

    def real(self, engine: Engine) -> tuple[float, list[Rollout]]:
        return self.schedule(engine, lambda problem: open_session(problem, self.pool))

    def recorded(
        self, kept: dict[str, list[list[ToolResult]]], seconds: float, **how: Any
    ) -> tuple[float, list[Rollout]]:
        """The scheduler with answers from the record; sessions of one problem open in the order of the jobs."""
        left = {name: iter(answers) for name, answers in kept.items()}
        return self.schedule(self.engine(), lambda problem: Recorded(problem, next(left[problem.id]), seconds), **how)


class Trl:
    """`trl_side.py`, which waits in its own process for its turn."""

    def __init__(self, python: Path, model: Path, pack: Path, problems: int) -> None:
        command = [str(python), str(Path(__file__).with_name("trl_side.py")), f"--model={model}"]
        self._process = subprocess.Popen(
            [*command, f"--problems={pack}", f"--group={GROUP}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TRL_EXPERIMENTAL_SILENCE": "1"},
        )
        self._sessions = GROUP * problems
        self._answer()

    def measure(self) -> Side:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        answer = self._answer()
        return Side("TRL's GRPO trainer, real tools", answer["seconds"], int(answer["tokens"]), self._sessions)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"trl_side.py ended with exit code {self._process.wait()}")
        answer: dict[str, float] = json.loads(line)
        return answer


def record(bench: Bench) -> tuple[list[Rollout], Answers]:
    """Make the sessions once with their real tools; what came back, by problem and in the order of its jobs."""
    kept: dict[str, list[Recorder]] = {}

    def opened(problem: Problem) -> Any:
        recorder = Recorder(open_session(problem, bench.pool))
        kept.setdefault(problem.id, []).append(recorder)
        return recorder

    _, rollouts = bench.schedule(bench.engine(), opened)
    return rollouts, {name: [one.answers for one in recorders] for name, recorders in kept.items()}


def requests_of(job: Job, rollout: Rollout, stop_ids: frozenset[int]) -> Iterator[SampleRequest]:
    """The turns of a recorded session as the engine was asked for them."""
    (segment,) = rollout.segments
    at, mask = 0, segment.loss_mask
    while at < len(mask):
        start = mask.index(1, at)
        end = next((t for t in range(start, len(mask)) if not mask[t]), len(mask))
        yield SampleRequest(
            job.trajectory_id, VERSION, segment.token_ids[:start], end - start, seed=job.seed, stop_ids=stop_ids
        )
        at = end


def ceiling(bench: Bench, rollouts: Sequence[Rollout]) -> tuple[float, int]:
    """Seconds and tokens of the engine alone: no parsing, no tools, no bookkeeping beyond the next request."""
    stop = bench.chat.stop_ids
    turns = [list(requests_of(job, one, stop)) for job, one in zip(bench.jobs, rollouts, strict=True)]
    waiting = [iter(one) for one in reversed(turns)]
    engine, running, tokens = bench.engine(), {}, 0
    started = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < bench.in_flight:
            session = waiting.pop()
            request = next(session)
            running[request.session] = session
            engine.submit(request)
        for name, completion in engine.poll():
            tokens += len(completion.token_ids)
            request_or_end = next(running[name], None)
            if request_or_end is None:
                del running[name]
                engine.close_session(name)
            else:
                engine.submit(request_or_end)
    return time.perf_counter() - started, tokens


def tokens_of(rollouts: Sequence[Rollout]) -> int:
    return sum(rollout.trajectory.sampled_tokens for rollout in rollouts)


def require_same(made: Sequence[Rollout], recorded: Sequence[Rollout]) -> None:
    """Raises SystemExit where a side sampled other tokens than the record has."""
    if [rollout.segments for rollout in made] != [rollout.segments for rollout in recorded]:
        raise SystemExit("the same jobs gave other tokens: these times are not of the same work")


def measure(bench: Bench, vllm: Engine | None, trl: Trl | None) -> list[Side]:
    """Every side once; raises SystemExit where one did not sample what the record has."""
    rollouts, kept = record(bench)
    count = len(rollouts)
    sides = [Side("ceiling", *ceiling(bench, rollouts), count)]
    for name, seconds, how in (
        ("instant tools", 0.0, {}),
        (f"tools of {SLOW:g} s", SLOW, {"tool_workers": bench.in_flight, "tool_latency_polls": 0}),
    ):
        took, made = bench.recorded(kept, seconds, **how)
        if not seconds:
            require_same(made, rollouts)
        sides.append(Side(name, took, tokens_of(made), count))
    took, made = bench.real(bench.engine())
    require_same(made, rollouts)
    sides.append(Side("real tools", took, tokens_of(made), count))
    if vllm is not None:
        took, made = bench.real(vllm)
        sides.append(Side("real tools, vLLM", took, tokens_of(made), count))
    if trl is not None:
        sides.append(trl.measure())
    return sides


def rate_of(side: Side) -> float:
    """Sampled tokens a second."""
    return side.tokens / side.seconds


def show(repeats: Sequence[Sequence[Side]]) -> None:
    print("| side | sessions/s | sampled tokens/s | tokens/s to the ceiling |\n|---|---|---|---|")
    for place, side in enumerate(repeats[0]):
        mine = [one[place] for one in repeats]
        ratios = [
            (one.tokens / one.seconds) / (all_[0].tokens / all_[0].seconds)
            for one, all_ in zip(mine, repeats, strict=True)
        ]
        per_second = statistics.median(one.sessions / one.seconds for one in mine)
        rate = statistics.median(map(rate_of, mine))
        print(f"| {side.name} | {per_second:.1f} | {rate:,.0f} | {statistics.median(ratios):.2f} |")


def memory(bench: Bench, sessions: int) -> None:
    """Resident memory while one engine plays `sessions` sessions, in rounds of the bench's jobs."""
    engine, played = bench.engine(), 0
    while played < sessions:
        bench.real(engine)
        played += len(bench.jobs)
        resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
        print(f"{played} sessions: {int(resident.split()[1]) / 1024:,.0f} MiB", flush=True)


@contextmanager
def vllm_engine(base: Base, wanted: bool) -> Iterator[Engine | None]:
    if not wanted:
        yield None
        return
    from tasks.rollout.vllm_config import VllmConfig
    from tasks.rollout.vllm_engine import open_vllm

    with tempfile.TemporaryDirectory() as logs, open_vllm(base, VllmConfig(servers=1), Path(logs)) as engine:
        engine.load_adapter(VERSION, None)
        yield engine


@contextmanager
def trl_side(python: Path | None, model: Path, problems: Sequence[Problem]) -> Iterator[Trl | None]:
    if python is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder, "problems.jsonl")
        pack.write_text("".join(problem.model_dump_json() + "\n" for problem in problems))
        with closing(Trl(python, model, pack, len(problems))) as trl:
            yield trl


def main() -> None:
    parser = argparse.ArgumentParser(description="Rollout throughput, as shares of what the engine alone can do.")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "starter", help="folder of the base model")
    parser.add_argument("--sessions", type=int, default=1536)
    parser.add_argument("--in-flight", type=int, default=256, help="sessions at a time, on every side of ours")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vllm", action="store_true", help="also one vLLM server (make vllm)")
    parser.add_argument("--trl", type=Path, metavar="PYTHON", help="also TRL, by a Python that has it")
    parser.add_argument("--memory", type=int, default=0, metavar="N", help="then play N sessions more, and show memory")
    given = parser.parse_args()
    base = load_base(given.model)
    problems = generate(77, "train", "short", given.sessions // GROUP)
    jobs = jobs_for(problems, range(GROUP), iteration=0, run_id="benchmark", seed=0)
    with (
        WarmPool(2, "agent") as pool,
        vllm_engine(base, given.vllm) as vllm,
        trl_side(given.trl, given.model, problems[: TRL_SESSIONS // GROUP]) as trl,
    ):
        bench = Bench(base, jobs, pool, given.in_flight)
        show([measure(bench, vllm, trl) for _ in range(given.repeats)])
        if given.memory:
            memory(bench, given.memory)


if __name__ == "__main__":
    main()
