"""The nouns of the pipeline, and what always holds of them.

problem -> rollout -> trajectory (turns) -> segments -> batch

One row a noun; every model here is frozen, refuses unknown keys, and round-trips through JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Horizon = Literal["short", "medium", "long"]
HORIZONS: tuple[Horizon, ...] = ("short", "medium", "long")

Status = Literal[
    "completed",
    "out_of_turns",
    "out_of_tokens",
    "tool_error",
    "sandbox_error",
    "verifier_error",
    "engine_error",
    "cancelled",
]
INFRASTRUCTURE: frozenset[str] = frozenset(
    {"tool_error", "sandbox_error", "verifier_error", "engine_error", "cancelled"}
)
"""Endings that say nothing about the policy: retried, then excluded, never a reward of 0."""

ORIGINS = ("prompt", "observed", "own", "policy")
"""Where tokens of a context come from; `policy`: put there by the context policy (a handle, a summary, notes)."""


class Record(BaseModel):
    """Base of every record: frozen, no unknown keys, no infinities or NaN in float fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Check(Record):
    """One automatic check: `code` run beside the problem's files, a `command` run in their folder, or a `reward`.

    Code (Python) fails by raising; a command (program and arguments, no shell) by any exit code but 0; a reward, where
    the problem's own scoring gives less.
    """

    name: str = Field(min_length=1)
    code: str = ""
    command: tuple[str, ...] = ()
    reward: float | None = Field(default=None, gt=0, le=1)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.code) + bool(self.command) + (self.reward is not None) != 1:
            raise ValueError(
                "give one of `code` (Python that raises), `command` (a list: program and arguments) and `reward` (the "
                "least that passes)"
            )
        return self


class Limits(Record):
    """What one rollout of a problem may use."""

    turns: int = Field(default=6, ge=1, description="model messages a rollout may send")
    tokens: int = Field(default=512, ge=1, description="tokens a rollout may sample, all turns together")
    seconds: float = Field(default=2.0, gt=0, description="wall-clock limit of one tool call or check run")
    memory_mb: int = Field(default=256, ge=32, description="address space of one tool call or check run")


class Origin(Record):
    """A task of a `verifiers` taskset as data: enough to open it, and to judge work on it in another process."""

    taskset: str = Field(min_length=1, description="id of the taskset: the module that exports it")
    config: dict[str, Any] = Field(default={}, description="the taskset's settings")
    data: dict[str, Any] = Field(description="the task's own data")
    tools: tuple[dict[str, Any], ...] = Field(default=(), description="its tools as JSON schemas, in OpenAI's form")


class Problem(Record):
    """One item to solve: files, what the agent is told, and the checks that decide.

    `visible` checks are what the agent may run; `hidden` checks decide the verified outcome and are never shown.
    `solution` holds the reference contents of the files it changes. The fields in WORKSPACE_ONLY are read by the
    environment `workspace` alone, `origin` by `verifiers`.
    """

    id: str = Field(min_length=1, pattern=r"^[\w.\-]+$")
    prompt: str = Field(min_length=1)
    files: dict[str, str] = Field(min_length=1)
    visible: tuple[Check, ...] = ()
    hidden: tuple[Check, ...] = Field(min_length=1)
    solution: dict[str, str] = Field(min_length=1)
    limits: Limits = Limits()
    horizon: Horizon = "short"
    tags: tuple[str, ...] = ()
    environment: str = "repair"
    hidden_files: dict[str, str] = Field(default={}, description="laid over the handed-in files for hidden checks")
    control: dict[str, str] = Field(
        default={}, description="laid over those in turn; hidden checks must fail then, whatever was handed in"
    )
    protected: tuple[str, ...] = Field(
        default=(), description="files (patterns such as tests/*) that the agent may read, not hand in"
    )
    programs: tuple[str, ...] = Field(default=(), description="programs that `run` may start; empty: any")
    origin: Origin | None = Field(default=None, description="the task of another package that this problem stands for")

    @model_validator(mode="after")
    def _paths_stay_inside(self) -> Self:
        for path in (*self.files, *self.solution, *self.hidden_files, *self.control):
            if path.startswith("/") or ".." in path.split("/") or not path:
                raise ValueError(f"file path {path!r} leaves the problem's folder: write a relative path without '..'")
        unknown = set(self.solution) - set(self.files)
        if unknown and self.environment == "repair":
            raise ValueError(f"solution names files that the problem does not have: {sorted(unknown)}")
        return self


WORKSPACE_ONLY = ("hidden_files", "control", "protected", "programs")


class ToolCall(Record):
    """A call the model asked for, as parsed from its message."""

    name: str
    arguments: dict[str, Any] = {}


def policy_name(number: int) -> str:
    """Name of the policy version that `number` iterations made: `policy-00017`."""
    return f"policy-{number:05d}"


def policy_number(version: str) -> int:
    """The number in a policy version's name. Raises ValueError for another name."""
    kind, _, number = version.partition("-")
    if kind != "policy" or not number.isdigit():
        raise ValueError(f"{version!r} is no policy version: they are named like {policy_name(17)}")
    return int(number)


class Answer(Record):
    """What a turn's call came back with: its part of the observation ends at the character `end`."""

    end: int = Field(ge=0)
    seconds: float = 0.0
    failed: bool = False


class Turn(Record):
    """One model message and what came back."""

    index: int = Field(ge=0)
    completion: str
    completion_tokens: int = Field(ge=0)
    prompt_tokens: int = Field(ge=0, description="length of the context the turn was sampled from")
    finish_reason: Literal["stop", "length"]
    calls: tuple[ToolCall, ...] = ()
    call_errors: tuple[str, ...] = ()
    observation: str = ""
    answers: tuple[Answer, ...] = Field(default=(), description="one for each call that was run, in their order")
    tool_failed: bool = Field(default=False, description="a call ended in an error observation (agent's fault)")
    policy_version: str = Field(default="", description="what sampled it; empty: the trajectory's")
    policy_digest: str
    sample_seconds: float = 0.0
    tool_seconds: float = 0.0
    changed: dict[str, str | None] = Field(
        default={}, description="files its calls changed, as they are now; null: gone"
    )
    visible: tuple[int, int] | None = Field(
        default=None, description="(passed, total) of the visible checks when they last ran, now that its calls have"
    )
    progress: float | None = Field(
        default=None, ge=-1, le=1, description="by how much the share of hidden checks that pass rose with it"
    )
    purpose: Literal["work", "summary"] = Field(default="work", description="a summary runs no calls and is no work")
    segment: int = Field(default=0, ge=0, description="the segment it was sampled in")
    cached_tokens: int = Field(default=0, ge=0, description="context tokens that the engine still held")
    origins: dict[str, int] = Field(default={}, description="context tokens by origin, see ORIGINS")
    prompt_kept: bool = Field(default=True, description="the context held every message of the prompt word for word")

    def after(self, files: Mapping[str, str]) -> dict[str, str]:
        """`files` as this turn's calls left them."""
        return {path: text for path, text in {**files, **self.changed}.items() if text is not None}


class Sampling(Record):
    """How tokens were drawn; the trainer scores them under the same temperature."""

    temperature: float = Field(default=1.0, ge=0, description="0 is greedy")
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = 0


TOKEN_COLUMNS = (
    "token_ids",
    "loss_mask",
    "rollout_logprobs",
    "turn_index",
    "advantages",
    "routed_experts",
    "policy_numbers",
)


class Segment(Record):
    """The per-token carrier of (part of) a rollout: five aligned lists of equal length T.

    `loss_mask` is 1 exactly at sampled tokens; there `rollout_logprobs` is the log-probability (nats, under the
    sampling temperature) the token was drawn with, elsewhere it is 0. `turn_index` is the turn a token belongs to:
    a turn's prompt increment and its completion carry the same index. `policy_numbers` is there where rollouts may
    be ahead of training: the number of the version that sampled each token, -1 where none did. `routed_experts` is
    there where the model has routers: per token the ids of its `experts_per_token` of `experts` experts, layer after
    layer; empty at the last token, which no forward read.
    """

    trajectory_id: str
    index: int = Field(default=0, ge=0)
    token_ids: list[int]
    loss_mask: list[int]
    rollout_logprobs: list[float]
    turn_index: list[int]
    advantages: list[float] | None = None
    routed_experts: list[list[int]] | None = None
    experts: int | None = Field(default=None, ge=1)
    experts_per_token: int | None = Field(default=None, ge=1)
    policy_numbers: list[int] | None = None

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        lengths = {name: len(value) for name in TOKEN_COLUMNS if (value := getattr(self, name)) is not None}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"token columns differ in length: {lengths}")
        return self


class Trajectory(Record):
    """The record of one rollout.

    `policy_version` is the one it ended under; `outcome` is the verified one: None until verified, or where that was
    impossible.
    """

    id: str
    run_id: str
    iteration: int
    problem_id: str
    horizon: Horizon
    group_id: str
    rollout_index: int = Field(ge=0)
    policy_version: str
    policy_digest: str
    status: Status
    detail: str = Field(default="", description="why an infrastructure ending happened")
    sampling: Sampling
    turns: tuple[Turn, ...]
    prompt_ids: list[int] = Field(description="token ids of the first prompt")
    sampled_tokens: int = Field(ge=0)
    context_tokens: int = Field(ge=0, description="length of the last context")
    malformed_calls: int = Field(default=0, ge=0)
    tool_errors: int = Field(default=0, ge=0)
    submitted: bool = False
    files: dict[str, str] = Field(default={}, description="the files as the agent left them")
    visible_passed: int | None = None
    visible_total: int = 0
    hidden_passed: int | None = None
    hidden_total: int = 0
    outcome: bool | None = None
    rewards: dict[str, float] = Field(default={}, description="reward terms by name, before weights")
    seconds: float = 0.0

    @property
    def scorable(self) -> bool:
        """Whether this rollout says something about the policy: it ended by itself and was verified."""
        return self.status not in INFRASTRUCTURE and self.outcome is not None


class Rollout(Record):
    """A finished rollout as the journal keeps it: the trajectory and its segments together."""

    trajectory: Trajectory
    segments: tuple[Segment, ...]


RECORDS: dict[str, type[Record]] = {
    "problems": Problem,
    "trajectories": Trajectory,
    "turns": Turn,
    "segments": Segment,
}
"""The record that a row of a table makes, where this package has one."""
