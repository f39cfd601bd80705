"""A trajectory as an MLflow trace: a span for the session, below it one for each turn, below that one for each call.

trajectory -> spans + trace info

Ids are derived from the trajectory's id, so writing one twice overwrites it. The spans are stored in one synchronous
transaction that raises when it fails; MLflow's own tracer hands them to a thread, which drops them when the process
ends first and hides errors.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from data_contracts.records import Trajectory, Turn

if TYPE_CHECKING:
    from mlflow.entities import Span, TraceInfo

_SESSION = ("session",)
PREVIEW = 200
"""Characters of a trace's request and response that MLflow lists."""


def trace_id(trajectory_id: str) -> str:
    """The MLflow trace id of a trajectory."""
    return "tr-" + _hex(trajectory_id, 32)


def session_spans(trajectory: Trajectory, *, prompt: str | None = None, ended_ns: int | None = None) -> list[Span]:
    """The session's span, then each turn's with those of its calls. `prompt` is shown as the session's input."""
    ended = time.time_ns() if ended_ns is None else ended_ns
    busy = sum(turn.sample_seconds + turn.tool_seconds for turn in trajectory.turns)
    started = ended - _ns(max(busy, trajectory.seconds))
    root = _span(
        trajectory.id,
        _SESSION,
        name="session",
        kind="AGENT",
        window=(started, ended),
        inputs={"problem": trajectory.problem_id, "prompt": prompt, "policy": trajectory.policy_version},
        outputs={"status": trajectory.status, "outcome": trajectory.outcome, "rewards": trajectory.rewards},
        failed=trajectory.outcome is None,
    )
    spans, cursor, seen = [root], started, prompt or ""
    for turn in trajectory.turns:
        after = cursor + _ns(turn.sample_seconds + turn.tool_seconds)
        spans.append(_turn_span(trajectory.id, turn, seen, (cursor, after)))
        spans += _call_spans(trajectory.id, turn, cursor + _ns(turn.sample_seconds))
        cursor, seen = after, turn.observation
    return spans


def trace_info(trajectory: Trajectory, spans: list[Span], experiment: str, mlflow_run: str) -> TraceInfo:
    """What MLflow lists and filters by: the run the trace belongs to, the session, and tags."""
    from mlflow.entities import TraceInfo, TraceLocation, TraceState

    root = spans[0]
    return TraceInfo(
        trace_id=trace_id(trajectory.id),
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=root.start_time_ns // 1_000_000,
        execution_duration=((root.end_time_ns or root.start_time_ns) - root.start_time_ns) // 1_000_000,
        state=TraceState.ERROR if trajectory.outcome is None else TraceState.OK,
        request_preview=str(root.inputs["prompt"] or trajectory.problem_id)[:PREVIEW],
        response_preview=f"{trajectory.status}, outcome {trajectory.outcome}, {len(trajectory.turns)} turns"[:PREVIEW],
        trace_metadata={"mlflow.sourceRun": mlflow_run, "mlflow.trace.session": trajectory.id},
        tags={
            "mlflow.traceName": f"{trajectory.problem_id} #{trajectory.rollout_index}",
            "ratchet.problem": trajectory.problem_id,
            "ratchet.horizon": trajectory.horizon,
            "ratchet.policy": trajectory.policy_version,
            "ratchet.digest": trajectory.policy_digest,
            "ratchet.status": trajectory.status,
            "ratchet.outcome": str(trajectory.outcome),
            "ratchet.iteration": str(trajectory.iteration),
        },
    )


def _turn_span(trajectory_id: str, turn: Turn, seen: str, window: tuple[int, int]) -> Span:
    return _span(
        trajectory_id,
        (*_SESSION, str(turn.index)),
        name=f"turn {turn.index}",
        kind="LLM",
        window=window,
        inputs={"observation": seen, "prompt_tokens": turn.prompt_tokens},
        outputs={
            "completion": turn.completion,
            "calls": [call.model_dump(mode="json") for call in turn.calls],
            "call_errors": list(turn.call_errors),
            "observation": turn.observation,
            "finish_reason": turn.finish_reason,
            "completion_tokens": turn.completion_tokens,
        },
        failed=turn.tool_failed or bool(turn.call_errors),
    )


def _call_spans(trajectory_id: str, turn: Turn, cursor: int) -> Iterator[Span]:
    """The calls that were run, one after another, each with its part of the observation."""
    start = 0
    for place, (call, answer) in enumerate(zip(turn.calls, turn.answers, strict=False)):
        after = cursor + _ns(answer.seconds)
        yield _span(
            trajectory_id,
            (*_SESSION, str(turn.index), str(place)),
            name=call.name,
            kind="TOOL",
            window=(cursor, after),
            inputs=call.arguments,
            outputs={"observation": turn.observation[start : answer.end]},
            failed=answer.failed,
        )
        cursor, start = after, answer.end + 1


def _span(
    trajectory_id: str,
    path: tuple[str, ...],
    *,
    name: str,
    kind: str,
    window: tuple[int, int],
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    failed: bool,
) -> Span:
    from mlflow.entities import Span

    attributes = {
        "mlflow.traceRequestId": trace_id(trajectory_id),
        "mlflow.spanType": kind,
        "mlflow.spanInputs": inputs,
        "mlflow.spanOutputs": outputs,
    }
    return Span.from_dict(
        {
            "trace_id": _base64(_hex(trajectory_id, 32)),
            "span_id": _span_id(trajectory_id, path),
            "parent_span_id": _span_id(trajectory_id, path[:-1]) if path[:-1] else None,
            "name": name,
            "start_time_unix_nano": window[0],
            "end_time_unix_nano": window[1],
            "events": [],
            "status": {"code": "STATUS_CODE_ERROR" if failed else "STATUS_CODE_OK", "message": ""},
            "attributes": {key: json.dumps(value) for key, value in attributes.items()},
            "links": [],
        }
    )


def _span_id(trajectory_id: str, path: tuple[str, ...]) -> str:
    return _base64(_hex("/".join((trajectory_id, *path)), 16))


def _hex(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _base64(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text)).decode()


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
