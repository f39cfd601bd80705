"""Small, whole rollouts to start from; tests mutate copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from data_contracts.records import Check, Problem, Sampling, Segment, ToolCall, Trajectory, Turn

DIGEST = "a" * 64


def make_problem(name: str = "p-1", **changes: object) -> Problem:
    fields: dict[str, object] = {
        "id": name,
        "prompt": "Mend add.",
        "files": {"add.py": "def add(a, b):\n    return a - b\n"},
        "visible": (Check(name="visible", code="assert add(1, 0) == 1"),),
        "hidden": (Check(name="hidden", code="assert add(2, 3) == 5"),),
        "solution": {"add.py": "def add(a, b):\n    return a + b\n"},
        "tags": ("arithmetic",),
    }
    return Problem.model_validate({**fields, **changes})


def make_turn(index: int, tokens: int, digest: str = DIGEST) -> Turn:
    return Turn(
        index=index,
        completion="<tool_call>é</tool_call>",
        completion_tokens=tokens,
        prompt_tokens=7 if index else 3,
        finish_reason="stop",
        calls=(ToolCall(name="edit", arguments={"old": "-", "n": 1.5}),),
        observation="ok\n",
        policy_digest=digest,
        sample_seconds=0.1,
    )


def make_trajectory(number: int, *, group: int | None = None, **changes: object) -> Trajectory:
    """Two turns of 2 and 3 sampled tokens; every second rollout solved its problem."""
    group = number // 4 if group is None else group
    solved = number % 2 == 0
    fields: dict[str, object] = {
        "id": f"r-{number}",
        "run_id": "run",
        "iteration": 3,
        "problem_id": f"p-{group}",
        "horizon": "short",
        "group_id": f"g-{group}",
        "rollout_index": number % 4,
        "policy_version": "policy-00003",
        "policy_digest": DIGEST,
        "status": "completed",
        "sampling": Sampling(seed=number),
        "turns": (make_turn(0, 2), make_turn(1, 3)),
        "prompt_ids": [1, 2, 3],
        "sampled_tokens": 5,
        "context_tokens": 12,
        "submitted": True,
        "files": {"add.py": "x = 1\n"},
        "visible_passed": 1,
        "visible_total": 1,
        "hidden_passed": 2 if solved else 1,
        "hidden_total": 2,
        "outcome": solved,
        "rewards": {"outcome": float(solved), "format": 0.1},
        "seconds": 0.25,
    }
    return Trajectory.model_validate({**fields, **changes})


def make_segment(number: int, index: int = 0, **changes: object) -> Segment:
    """Prompt of 3, completion of 2, observation of 2, completion of 3: five sampled tokens."""
    fields: dict[str, object] = {
        "trajectory_id": f"r-{number}",
        "index": index,
        "token_ids": [1, 2, 3, 10, 11, 4, 5, 12, 13, 14],
        "loss_mask": [0, 0, 0, 1, 1, 0, 0, 1, 1, 1],
        "rollout_logprobs": [0.0, 0.0, 0.0, -0.5, -1.25, 0.0, 0.0, -2.0, 0.0, -1e-9],
        "turn_index": [0, 0, 0, 0, 0, 1, 1, 1, 1, 1],
    }
    return Segment.model_validate({**fields, **changes})


@pytest.fixture
def problem() -> Callable[..., Problem]:
    return make_problem


@pytest.fixture
def turn() -> Callable[..., Turn]:
    return make_turn


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    return make_trajectory


@pytest.fixture
def segment() -> Callable[..., Segment]:
    return make_segment


@pytest.fixture
def trajectories() -> list[Trajectory]:
    return [make_trajectory(number) for number in range(8)]


@pytest.fixture
def segments() -> list[Segment]:
    return [make_segment(number) for number in range(8)]
