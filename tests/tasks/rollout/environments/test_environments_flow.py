"""Problems of both environments through the ordinary flow: sampled by the real starter, judged, contract-valid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from data_contracts.records import Check, Limits, Problem, Sampling
from data_contracts.store import read_trajectories
from models.chat import Chat
from models.policy import load_base
from tasks.reward.config import RewardConfig
from tasks.reward.verify import verify, verify_all
from tasks.rollout.batch import keep_valid
from tasks.rollout.environments import ENVIRONMENTS, Verified, open_session
from tasks.rollout.environments.repair import Repair
from tasks.rollout.jobs import jobs_for
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.scheduler import run_sessions
from tasks.rollout.slot_engine import SlotEngine

STARTER = Path(__file__).parents[4] / "models" / "starter"
V = "policy-00000"
CHECK = ("python", "check.py")
PROJECT = Problem(
    id="project",
    environment="workspace",
    prompt="Tests fail. Fix main.py.",
    files={
        "main.py": "from step import STEP\n\ndef add(x):\n    return x - STEP\n",
        "step.py": "STEP = 2\n",
        "notes.txt": "",
    },
    visible=(Check(name="imports", command=("python", "main.py")),),
    hidden=(Check(name="adds", command=CHECK),),
    hidden_files={"check.py": "from main import add\nassert add(1) == 3\n"},
    control={"check.py": "from main import add\nassert add(1) == 4\n"},
    solution={"main.py": "from step import STEP\n\ndef add(x):\n    return x + STEP\n"},
    limits=Limits(turns=5, tokens=150, seconds=20.0),
)
MODULE = Problem(
    id="module",
    prompt="Tests fail. Fix main.py.",
    files={"main.py": "def add(x):\n    return x - 2\n"},
    visible=(Check(name="v", code="assert add(1) == 3"),),
    hidden=(Check(name="h", code="assert add(2) == 4"),),
    solution={"main.py": "def add(x):\n    return x + 2\n"},
)
PROBLEMS = {problem.id: problem for problem in (PROJECT, MODULE)}


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(1, "test") as sandboxes:
        yield sandboxes


def test_the_starter_samples_both_and_each_is_judged_by_its_environment(pool: WarmPool, tmp_path: Path) -> None:
    base = load_base(STARTER)
    engine = SlotEngine.from_base(base, slots=8)
    engine.load_adapter(V, None)
    rollouts = run_sessions(
        jobs_for(list(PROBLEMS.values()), range(4), iteration=0, run_id="run", seed=0),
        engine,
        Chat(base.tokenizer),
        open_session=lambda problem: open_session(problem, pool),
        policy_version=V,
        sampling=Sampling(),
    )
    places = tmp_path / "rollouts.parquet", tmp_path / "segments.parquet", tmp_path / "quarantine"
    assert keep_valid(rollouts, *places, "run", 0).accepted == 8
    found = verify_all(read_trajectories(places[0]), PROBLEMS, pool, RewardConfig())
    ours = [trajectory for trajectory in found if trajectory.problem_id == "project"]
    assert len(ours) == 4
    for trajectory in ours:
        assert trajectory.status in ("completed", "out_of_turns", "out_of_tokens")
        assert (trajectory.outcome, trajectory.hidden_passed, trajectory.hidden_total) == (False, 0, 1)
        assert trajectory.rewards["outcome"] == 0.0
    # the starter knows `read` without a path from its one-file problems: here that is a call to mend
    observations = [turn.observation for trajectory in ours for turn in trajectory.turns]
    assert "error: read takes path, line, end_line" in observations
    solved = ours[0].model_copy(update={"files": {**ours[0].files, **PROJECT.solution}})
    assert verify(solved, PROJECT, pool).outcome is True
    assert {t.outcome for t in found if t.problem_id == "module"} <= {True, False}


def test_a_verdict_that_is_no_score_is_a_verifier_error(pool: WarmPool, make_trajectory, monkeypatch) -> None:
    class Wild(Repair):
        def verify(self, problem, files, pool):
            return Verified(float("nan"), 1, 1)

    monkeypatch.setitem(ENVIRONMENTS, "wild", Wild())
    wild = MODULE.model_copy(update={"environment": "wild"})
    found = verify(make_trajectory("module", outcome=None), wild, pool)
    assert (found.status, found.outcome, found.rewards) == ("verifier_error", None, {})
    assert "no score from 0 to 1" in found.detail
