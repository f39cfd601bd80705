"""A session far longer than the model's window, on the real engine: it goes on, and keeps its task in sight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from data_contracts.records import Problem, Rollout, Sampling
from models.chat import Chat
from tasks.credit.assign import assign
from tasks.credit.config import CreditConfig
from tasks.rollout.agent import Job
from tasks.rollout.config import RolloutConfig
from tasks.rollout.context import ContextConfig, check_window
from tasks.rollout.context.compact import ASK
from tasks.rollout.scheduler import run_sessions
from tasks.rollout.slot_engine import SlotEngine
from tasks.training.packing import minibatches

V, WINDOW, TURN = "policy-00000", 512, 24
PROMPT = "Fix p. Never delete a file, keep every name, and use no import."


class LookingChat(Chat):
    """A chat that reads any tokens as words and a call of `look`, so that a random model uses its tool."""

    @property
    def stop_ids(self) -> frozenset[int]:  # type: ignore[override]
        return frozenset(range(2, 768, 6))

    def decode(self, ids: Sequence[int]) -> str:
        return f'step {sum(ids)}<tool_call>{{"name": "look", "arguments": {{"n": 50}}}}</tool_call>'


def rollouts(
    context: ContextConfig, engine: SlotEngine, chat: Chat, make_problem: Callable[..., Problem], playground: Any
) -> list[Rollout]:
    problem = make_problem(turns=40, tokens=4000).model_copy(update={"prompt": PROMPT})
    jobs = [Job(problem, "g", index, 100 + index, 0, "run") for index in range(2)]
    return run_sessions(
        jobs, engine, chat, open_session=playground, policy_version=V, sampling=Sampling(),
        config=RolloutConfig(max_turn_tokens=TURN, context=context),
    )  # fmt: skip


def length(rollout: Rollout, chat: Chat) -> int:
    """Tokens that were said and observed, each counted once."""
    turns = rollout.trajectory.turns
    return sum(turn.completion_tokens + len(chat.ids(turn.observation)) for turn in turns)


@pytest.fixture
def looking(chat: Chat) -> LookingChat:
    return LookingChat(chat.tokenizer)


def test_compacting_sustains_four_windows_without_losing_the_task(
    make_engine: Callable[..., SlotEngine], looking: LookingChat, make_problem: Callable[..., Problem], playground: Any
) -> None:
    mark = WINDOW - TURN - 60 - 30 - len(looking.ids(ASK))
    context = ContextConfig(policy="compact", compact_at=mark, summary_tokens=30, observation_tokens=60)
    check_window(context, TURN, looking, WINDOW)
    engine = make_engine()
    made = rollouts(context, engine, looking, make_problem, playground)
    for rollout in made:
        trajectory = rollout.trajectory
        assert trajectory.status == "out_of_turns", "it ends by the problem's turns, not by the window"
        assert length(rollout, looking) >= 4 * WINDOW
        assert max(len(segment.token_ids) for segment in rollout.segments) <= WINDOW
        assert sum(turn.purpose == "summary" for turn in trajectory.turns) == len(rollout.segments) - 1 >= 4
        assert all(turn.prompt_kept for turn in trajectory.turns)
        for segment in rollout.segments:
            assert PROMPT in looking.tokenizer.decode(segment.token_ids)
        for segment in (*rollout.segments[:2], rollout.segments[-1]):
            forced = [0.0, *engine.teacher_force(V, segment.token_ids)]
            columns = zip(forced, segment.rollout_logprobs, segment.loss_mask, strict=True)
            assert max(abs(a - b) for a, b, mask in columns if mask) < 1e-4
    votes = [made[0].trajectory, made[1].trajectory]
    votes = [
        t.model_copy(update={"outcome": i == 0, "rewards": {"outcome": float(i == 0)}}) for i, t in enumerate(votes)
    ]
    segments = assign(
        votes, [s for rollout in made for s in rollout.segments], CreditConfig(scale="none", baseline="mean")
    )
    given = {
        (s.trajectory_id, a) for s in segments for a, mask in zip(s.advantages or [], s.loss_mask, strict=True) if mask
    }
    assert given == {(votes[0].id, 0.5), (votes[1].id, -0.5)}, "one rollout, one vote, however many segments"
    first, second = minibatches(segments, 2, seed=0, iteration=0, epoch=0)
    assert {segments[i].trajectory_id for i in first}.isdisjoint({segments[i].trajectory_id for i in second})
    assert len(first) + len(second) == len(segments)


def test_without_a_policy_the_window_ends_the_session(
    make_engine: Callable[..., SlotEngine], looking: LookingChat, make_problem: Callable[..., Problem], playground: Any
) -> None:
    for rollout in rollouts(ContextConfig(), make_engine(), looking, make_problem, playground):
        assert rollout.trajectory.status == "out_of_tokens"
        assert length(rollout, looking) < WINDOW
