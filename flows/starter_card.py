"""The starter's model card: how it was made, and what it solves of held-out problems before any reinforcement.

model folder -> greedy and sampled sessions on held-out problems -> verified -> README.md in the folder
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from data_contracts.records import HORIZONS, Horizon, Problem, Sampling, Trajectory
from data_contracts.store import write_atomic
from flows import progress
from tasks.evaluation.report import report
from tasks.reward.config import RewardConfig
from tasks.reward.verify import verify_all
from tasks.rollout.environments import open_session
from tasks.rollout.jobs import jobs_for
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.scheduler import run_sessions

if TYPE_CHECKING:
    from models.policy import Base

PROBLEM_SEED = 2_000_000
VERSION = "starter"

CARD = """---
pipeline_tag: text-generation
---
# The starter model

A Qwen3-architecture model of {parameters:.2f} M parameters that reads, edits, tests and submits small Python modules,
badly enough to leave room for reinforcement learning. It was made, from nothing but a seed, by

    ratchet starter build --seed {seed}

A byte-level BPE, then supervised training on scripted demonstrations: {skilled:,} of a skilled expert, and
{careless:,} of a careless one that edits wrongly, tests seldom and gives up. No function of a held-out
problem (split by normalised source) occurs in them at any moment.

Verified success on held-out problems (hidden tests), 95 % interval:

| horizon | sampling | n | success |
|---|---|---|---|
{rows}
"""


class Made(NamedTuple):
    """What the card tells of the build."""

    seed: int
    skilled: int
    careless: int


def write_card(folder: Path, made: Made, sizes: dict[Horizon, int]) -> Path:
    """Evaluate the model in `folder` and write its README.md; returns that file."""
    from models.policy import load_base

    base = load_base(folder)
    problems = [problem for h, n in sizes.items() for problem in _heldout(h, n)]
    rows = []
    for mode, temperature in (("greedy", 0.0), ("temperature 1", 1.0)):
        measured = report(_verified(base, problems, temperature)).horizons
        for horizon in (h for h in HORIZONS if measured[h].n):
            part = measured[horizon]
            rows.append(f"| {horizon} | {mode} | {part.n} | {part.rate:.1%} ({part.low:.1%} to {part.high:.1%}) |")
    parameters = sum(p.numel() for p in base.model.parameters()) / 1e6
    text = CARD.format(parameters=parameters, rows="\n".join(rows), **made._asdict())
    write_atomic(folder / "README.md", text)
    return folder / "README.md"


def _heldout(horizon: Horizon, n: int) -> list[Problem]:
    from tasks.curriculum.generator.problems import generate

    return generate(PROBLEM_SEED, "heldout", horizon, n)


def _verified(base: Base, problems: list[Problem], temperature: float) -> list[Trajectory]:
    from models.chat import Chat
    from tasks.rollout.slot_engine import SlotEngine

    engine = SlotEngine.from_base(base)
    engine.load_adapter(VERSION, None)
    stage = progress.stage(f"evaluation: temperature {temperature:g}", len(problems))
    with WarmPool(2, "agent") as agent, WarmPool(2, "verifier") as verifier, stage as tick:
        rollouts = run_sessions(
            jobs_for(problems, [0], iteration=0, run_id=f"card-{temperature:g}", seed=0),
            engine,
            Chat(base.tokenizer),
            open_session=lambda problem: open_session(problem, agent),
            policy_version=VERSION,
            sampling=Sampling(temperature=temperature),
            on_done=lambda _: tick(),
        )
        trajectories = [rollout.trajectory for rollout in rollouts]
        return verify_all(trajectories, {problem.id: problem for problem in problems}, verifier, RewardConfig())
