"""Post-training against TRL's GRPO trainer: the same starter, problems and sampling budget an iteration.

    python tests/benchmarks/training.py --trl PYTHON [--target 0.8] [--seed N] [--limit MINUTES] [--home FOLDER]

`PYTHON` has TRL (`trl_side.py` says how to make it) and `peft`. Each side trains on generated problems of the short
horizon, 16 groups of 8 an iteration in 4 optimizer steps, LoRA, until `--target` of held-out problems is solved; every
second iteration it is measured on them, by this project's engine and hidden checks for both, while its clock stands.
Ours is the whole iteration: choice of problems, rollouts, gates, verification, credit, training, checkpoint.
Prints the wall time to the target, trained tokens a second (of the time beside sampling), and peak memory of a side's
processes, and how many times faster ours was.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flows.services import prefect_api

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "infra" / "recipes" / "quickstart.toml"
EVERY = 2
"""Iterations between two measurements."""
ITERATIONS = 200


class Step(NamedTuple):
    """A side at one of its measurements: what it took since the one before."""

    seconds: float
    sampling_seconds: float
    tokens: int
    memory_mb: float
    adapter: Path


class Reached(NamedTuple):
    """A side at its end."""

    name: str
    minutes: float
    iterations: int
    success: float
    trained_per_second: float
    memory_mb: float


def ours(bench: Any, recipe: Any) -> Iterator[Step]:
    """The loop of `post_train`, its stages' own clocks read."""
    from data_contracts.store import read_json, read_jsonl
    from flows.iteration import iterate

    read = 0
    for start in range(0, recipe.iterations, EVERY):
        tokens = 0
        for iteration in range(start, start + EVERY):
            iterate(bench, recipe, iteration)
            tokens += read_json(bench.run.iteration(iteration).metrics)["tokens.sampled"]
        rows = read_jsonl(bench.run.seconds).rows
        new, read = [row for row in rows[read:] if row["iteration"] is not None], len(rows)
        sampling = sum(row["seconds"] for row in new if row["stage"] == "rollout")
        everything = sum(row["seconds"] for row in new)
        yield Step(everything, sampling, tokens, peak_memory(os.getpid()), bench.run.policy(start + EVERY))


def theirs(python: Path, model: str, pack: Path, settings: dict[str, Any]) -> Iterator[Step]:
    """`trl_training.py` in its own process, a line to and from it for each measurement."""
    command = [str(python), str(Path(__file__).with_name("trl_training.py")), f"--model={ROOT / model}"]
    command += [f"--problems={pack}", f"--settings={json.dumps(settings)}"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "TRL_EXPERIMENTAL_SILENCE": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit(f"trl_training.py ended with exit code {process.wait()}")
        try:
            while True:
                process.stdin.write("go\n")
                process.stdin.flush()
                line = process.stdout.readline()
                if not line:
                    return
                found = json.loads(line)
                adapter = Path(found.pop("adapter"))
                yield Step(**found, adapter=adapter)
        finally:
            process.stdin.close()


def peak_memory(root: int) -> float:
    """MiB: the sum of the peaks of a process and those it started that live."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(") ", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    mine = {root}
    while grown := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= grown
    return sum(_peak(pid) for pid in mine) / 1024


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def success_of(bench: Any, recipe: Any, adapter: Path, name: str) -> float:
    """Verified success on the held-out problems, sampled at temperature 1."""
    from data_contracts.problems import read_pack
    from data_contracts.records import Sampling
    from tasks.reward.verify import verify_all
    from tasks.rollout.environments import open_session
    from tasks.rollout.jobs import jobs_for
    from tasks.rollout.scheduler import run_sessions

    problems = read_pack(bench.run.heldout).problems
    bench.engine.load_adapter(name, adapter)
    rollouts = run_sessions(
        jobs_for(problems, range(recipe.evaluation.rollouts), iteration=0, run_id=name, seed=1),
        bench.engine,
        bench.chat,
        open_session=lambda problem: open_session(problem, bench.agent_pool),
        policy_version=name,
        sampling=Sampling(),
        config=recipe.rollout,
    )
    bench.engine.drop_adapter(name)
    known = {problem.id: problem for problem in problems}
    verified = verify_all([rollout.trajectory for rollout in rollouts], known, bench.verifier_pool, recipe.reward)
    scored = [bool(trajectory.outcome) for trajectory in verified if trajectory.scorable]
    return sum(scored) / len(scored)


def race(name: str, steps: Iterator[Step], bench: Any, recipe: Any, target: float, limit: float) -> Reached:
    """Go on with a side until the target is reached or its time is spent."""
    seconds = training = 0.0
    tokens, memory, success, count = 0, 0.0, 0.0, 0
    for count, step in enumerate(steps, start=1):
        seconds, tokens = seconds + step.seconds, tokens + step.tokens
        training, memory = training + step.seconds - step.sampling_seconds, max(memory, step.memory_mb)
        success = success_of(bench, recipe, step.adapter, f"policy-9{count:04d}")
        print(f"{name}: {count * EVERY} iterations, {seconds:.0f} s, {tokens:,} tokens, {success:.1%}", flush=True)
        if success >= target or seconds > 60 * limit:
            break
    return Reached(name, seconds / 60, count * EVERY, success, tokens / training, memory)


def show(sides: Sequence[Reached], target: float) -> None:
    print("| side | minutes | iterations | held-out success | trained tokens/s | peak memory, MiB |")
    print("|---|---|---|---|---|---|")
    for side in sides:
        figures = f"{side.success:.1%} | {side.trained_per_second:,.0f} | {side.memory_mb:,.0f}"
        print(f"| {side.name} | {side.minutes:.1f} | {side.iterations} | {figures} |")
    if len(sides) == 2 and sides[0].success >= target:
        at_least = "" if sides[1].success >= target else "at least "
        print(f"to {target:.0%}: {at_least}{sides[1].minutes / sides[0].minutes:.1f} times faster")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trl", type=Path, metavar="PYTHON", help="a Python that has TRL and peft")
    parser.add_argument("--target", type=float, default=0.8, help="verified success on held-out problems")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60, help="minutes after which a side is stopped")
    parser.add_argument("--home", type=Path, help="a folder to keep; default: a temporary one")
    given = parser.parse_args()
    os.environ["PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW"] = "ignore"  # stages run here without a flow around them
    with tempfile.TemporaryDirectory() as scratch:
        home = (given.home or Path(scratch)).resolve()
        with prefect_api(home):
            show(sides(given, home), given.target)


def sides(given: argparse.Namespace, home: Path) -> list[Reached]:
    from flows.curriculum import curriculum
    from flows.recipe import load_recipe
    from flows.runs import begin, choose_run
    from flows.stage import at_work

    changes = ["curriculum.train_problems={ short = 320 }", "evaluation.problems={ short = 160 }"]
    changes += ["evaluation.rollouts=2", f"iterations={ITERATIONS}", f"seed={given.seed}"]
    recipe = load_recipe(RECIPE, changes)
    run = choose_run(home, recipe, fresh=True)
    begin(run, recipe)
    with at_work(str(run.root)) as (bench, seeded):
        curriculum(str(run.root))
        found = [race("RatchetRL", ours(bench, seeded), bench, seeded, given.target, given.limit)]
        if given.trl is not None:
            bench.trainer.close()  # its worker would hold memory beside the other side's
            other = theirs(given.trl, recipe.policy.base, run.train, settings_of(seeded))
            found.append(race("TRL's GRPO trainer", other, bench, seeded, given.target, given.limit))
    return found


def settings_of(recipe: Any) -> dict[str, Any]:
    """What both sides share."""
    names = ("minibatches", "learning_rate", "warmup_steps", "beta2", "grad_clip", "clip_low", "clip_high")
    group, problems = recipe.rollout.rollouts_per_problem, recipe.curriculum.problems_per_iteration
    return {
        **{name: getattr(recipe.training, name) for name in (*names, "lora_r", "lora_alpha")},
        "group": group,
        "rollouts": group * problems,
        "every": EVERY,
        "iterations": ITERATIONS,
        "seed": recipe.seed,
    }


if __name__ == "__main__":
    main()
