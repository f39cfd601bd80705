"""Tasks of `verifiers` tasksets through the ordinary flow: sampled, contract-valid, judged from what was kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from data_contracts.records import Problem, Sampling, Trajectory
from data_contracts.store import frame_of, read_trajectories, records_of
from data_contracts.validate import validate
from models.chat import Chat
from models.policy import load_base
from tasks.reward.config import RewardConfig
from tasks.reward.verify import verify, verify_all
from tasks.rollout.batch import keep_valid
from tasks.rollout.config import RolloutConfig
from tasks.rollout.environments import ENVIRONMENTS, open_session
from tasks.rollout.environments.verifiers import Verifiers
from tasks.rollout.jobs import jobs_for
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.scheduler import run_sessions
from tasks.rollout.slot_engine import SlotEngine

STARTER = Path(__file__).parents[4] / "models" / "starter"
V = "policy-00000"
SAID = (
    *(("count", {}), ("move", {"name": "bolts", "amount": 2}), ("move", {"name": "nuts", "amount": -3})),
    *(("move", {"name": "nuts", "amount": 1}), ("move", {"name": "bolts"}), "done", "7", "12 is it"),
)


class Spoken(Chat):
    """A chat that reads a call or an answer into any tokens, so that a random model uses tools and answers."""

    @property
    def stop_ids(self) -> frozenset[int]:  # type: ignore[override]
        return frozenset(range(2, 768, 6))

    def decode(self, ids: Sequence[int]) -> str:
        said = SAID[sum(ids) % len(SAID)]
        if isinstance(said, str):
            return said
        return f"<tool_call>{json.dumps({'name': said[0], 'arguments': said[1]})}</tool_call>"


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(1, "test") as sandboxes:
        yield sandboxes


def sampled(
    problems: Sequence[Problem], engine: Any, chat: Chat, pool: WarmPool, folder: Path, *, turn: int
) -> list[Trajectory]:
    """Eight rollouts of each problem, all accepted by the contracts, read back from disk and judged."""
    rollouts = run_sessions(
        jobs_for(problems, range(8), iteration=0, run_id="run", seed=0),
        engine,
        chat,
        open_session=lambda problem: open_session(problem, pool),
        policy_version=V,
        sampling=Sampling(),
        config=RolloutConfig(capacity=8, max_turn_tokens=turn),
    )
    places = folder / "rollouts.parquet", folder / "segments.parquet", folder / "quarantine"
    assert keep_valid(rollouts, *places, "run", 0).accepted == 8 * len(problems)
    by_id = {problem.id: problem for problem in problems}
    return verify_all(read_trajectories(places[0]), by_id, pool, RewardConfig())


def test_some_solve_their_task_and_each_verdict_can_be_had_again(
    stockroom: list[Problem],
    sums: list[Problem],
    make_engine: Callable[..., SlotEngine],
    chat: Chat,
    pool: WarmPool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems = [*stockroom[:3], *sums]
    found = sampled(problems, make_engine(), Spoken(chat.tokenizer), pool, tmp_path, turn=12)
    assert {trajectory.status for trajectory in found} <= {"completed", "out_of_turns", "out_of_tokens"}
    for kind in ("stockroom", "sums"):
        assert {t.outcome for t in found if t.problem_id.startswith(kind)} == {True, False}
    answers = {t.turns[-1].completion for t in found if t.submitted}
    assert answers == {"done", "7", "12 is it"}
    right = [t for t in found if t.outcome]
    assert {t.rewards["outcome"] for t in right} == {1.0}
    assert all(t.turns[-1].completion == "7" for t in right if t.problem_id == "sums-0")
    assert any(t.tool_errors and "error: move takes name, amount" in t.turns[-2].observation for t in found[:24])
    monkeypatch.setitem(ENVIRONMENTS, "verifiers", again := Verifiers())  # other processes than those of the sessions
    try:
        kept = right[0].model_copy(update={"outcome": None, "rewards": {}})
        problem = next(problem for problem in problems if problem.id == kept.problem_id)
        assert verify(Trajectory.model_validate_json(kept.model_dump_json()), problem, pool).outcome is True
    finally:
        again.close()


def test_the_starter_plays_them(stockroom: list[Problem], sums: list[Problem], pool: WarmPool, tmp_path: Path) -> None:
    base = load_base(STARTER)
    engine = SlotEngine.from_base(base, slots=8)
    engine.load_adapter(V, None)
    found = sampled([stockroom[0], sums[0]], engine, Chat(base.tokenizer), pool, tmp_path, turn=30)
    assert {trajectory.status for trajectory in found} <= {"completed", "out_of_turns", "out_of_tokens"}
    assert {trajectory.outcome for trajectory in found} == {False}  # it knows nothing but to mend programs
    assert all(0 < t.sampled_tokens <= 60 for t in found)


def test_their_problems_hold_by_the_contract(stockroom: list[Problem], sums: list[Problem]) -> None:
    frame = frame_of("problems", [*stockroom, *sums])
    assert validate("problems", frame).rejected == []
    assert records_of("problems", frame) == [*stockroom, *sums]
