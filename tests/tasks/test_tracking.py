"""The tracker on a real MLflow with sqlite: resumed runs, metrics once, data sets, whole traces."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pandas as pd
import pytest

from data_contracts.errors import UserError
from data_contracts.records import Answer, Sampling, ToolCall, Trajectory, Turn
from models.mlflow_client import connect
from tasks.traces import session_spans, trace_id
from tasks.tracking import Tracker


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracking")


def uri(home: Path) -> str:
    return f"sqlite:///{home}/mlflow.db"


@pytest.fixture
def tracker(home: Path, request: pytest.FixtureRequest) -> Tracker:
    return Tracker(uri(home), home / "mlartifacts", "ratchet", request.node.name)


def reopened(home: Path, name: str) -> Tracker:
    return Tracker(uri(home), home / "mlartifacts", "ratchet", name)


def session(name: str, turns: int, outcome: bool | None = True) -> Trajectory:
    made = [
        Turn(
            index=number, completion=f"message {number}", completion_tokens=5, prompt_tokens=10 * number,
            finish_reason="stop", calls=(ToolCall(name="edit", arguments={"line": number}),),
            call_errors=("no such tool",) if number == 1 else (), observation=f"saw {number}: é",
            policy_digest="d", sample_seconds=0.5, tool_seconds=0.25,
        )
        for number in range(turns)
    ]  # fmt: skip
    return Trajectory(
        id=name, run_id="r", iteration=3, problem_id="add-1", horizon="short", group_id="g", rollout_index=2,
        policy_version="policy-00003", policy_digest="d", status="completed", sampling=Sampling(), turns=tuple(made),
        prompt_ids=[1], sampled_tokens=5 * turns, context_tokens=9, outcome=outcome, rewards={"verified": 1.0},
    )  # fmt: skip


def test_metrics_of_an_iteration_are_one_call_and_logged_once(tracker: Tracker, home: Path) -> None:
    tracker.log_metrics({"loss": 0.5, "reward": 1, "skipped": None}, step=0)
    tracker.log_metrics({"loss": 0.25, "reward": 2}, step=1)
    again = reopened(home, "test_metrics_of_an_iteration_are_one_call_and_logged_once")
    assert again.mlflow_run == tracker.mlflow_run
    again.log_metrics({"loss": 0.25, "reward": 2, "fresh": float("nan")}, step=1)
    again.log_metrics({"loss": 0.125}, step=2)
    client = connect(uri(home))
    history = client.get_metric_history(tracker.mlflow_run, "loss")
    assert [(metric.step, metric.value) for metric in history] == [(0, 0.5), (1, 0.25), (2, 0.125)]
    assert set(client.get_run(tracker.mlflow_run).data.metrics) == {"loss", "reward", "fresh"}


def test_metrics_cost_little(tracker: Tracker) -> None:
    tracker.log_metrics({f"m{number}": 0.5 for number in range(40)}, step=0)
    costs = []
    for step in range(1, 11):
        started = time.process_time()
        tracker.log_metrics({f"m{number}": 0.5 for number in range(40)}, step=step)
        costs.append(time.process_time() - started)
    assert min(costs) < 0.03, "seconds of this process an iteration; the least, since the machine may be busy"


def test_run_is_finished_and_opened_again(tracker: Tracker, home: Path) -> None:
    client = connect(uri(home))
    tracker.finish("FAILED")
    assert client.get_run(tracker.mlflow_run).info.status == "FAILED"
    again = reopened(home, "test_run_is_finished_and_opened_again")
    assert again.mlflow_run == tracker.mlflow_run
    assert client.get_run(tracker.mlflow_run).info.status == "RUNNING"
    again.finish()
    assert client.get_run(tracker.mlflow_run).info.status == "FINISHED"


def test_params_tags_and_artifacts(tracker: Tracker, home: Path, tmp_path: Path) -> None:
    recipe = {"training": {"lr": 0.001, "clip": [0.2, 0.28]}, "seed": 3}
    for _ in range(2):
        tracker.log_params(recipe)
        tracker.set_tags({"stage": "training"})
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "report.html").write_text("<p>")
    tracker.log_artifacts(tmp_path / "folder", "report")
    tracker.log_artifacts(tmp_path / "folder" / "report.html")
    client = connect(uri(home))
    run = client.get_run(tracker.mlflow_run)
    assert run.data.params == {"training.lr": "0.001", "training.clip": "[0.2, 0.28]", "seed": "3"}
    assert run.data.tags["stage"] == "training"
    assert Path(client.download_artifacts(tracker.mlflow_run, "report/report.html")).read_text() == "<p>"
    assert [item.path for item in client.list_artifacts(tracker.mlflow_run)] == ["report", "report.html"]
    with pytest.raises(UserError, match="nowhere does not exist"):
        tracker.log_artifacts(tmp_path / "nowhere")


def test_data_sets_are_linked_once_with_their_whole_digest(tracker: Tracker, home: Path, tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": ["a", "b"], "tokens": [[1], [2, 3]]})
    frame.to_parquet(tmp_path / "batch.parquet")
    (tmp_path / "problems.jsonl").write_text('{"id": "a"}\n{"id": "b"}\n{"id": "c"}\n')
    for _ in range(2):
        tracker.log_dataset("frame", frame, "1" * 64, "training")
        tracker.log_dataset("batch", tmp_path / "batch.parquet", "2" * 64, "training")
        tracker.log_dataset("problems", tmp_path / "problems.jsonl", "3" * 64, "evaluation")
    inputs = connect(uri(home)).get_run(tracker.mlflow_run).inputs.dataset_inputs
    told = {item.dataset.name: (item.dataset.profile, {tag.key: tag.value for tag in item.tags}) for item in inputs}
    assert len(inputs) == 3
    assert told["frame"] == ('{"num_rows": 2}', {"mlflow.data.context": "training", "ratchet.digest": "1" * 64})
    assert told["batch"][0] == '{"num_rows": 2}'
    assert told["problems"] == ('{"num_rows": 3}', {"mlflow.data.context": "evaluation", "ratchet.digest": "3" * 64})
    with pytest.raises(UserError, match=r"gone\.parquet does not exist"):
        tracker.log_dataset("gone", tmp_path / "gone.parquet", "4" * 64, "training")


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_trace_has_a_span_for_each_turn_and_one_for_the_session(tracker: Tracker, home: Path, turns: int) -> None:
    trajectory = session(f"s-{turns}", turns)
    for _ in range(2):
        tracker.log_trajectory_trace(trajectory, prompt="mend add()")
    trace = connect(uri(home)).get_trace(trace_id(trajectory.id))
    root, *rest = sorted(trace.data.spans, key=lambda span: span.start_time_ns + (span.parent_id is not None))
    assert len(rest) == turns
    assert root.parent_id is None and all(span.parent_id == root.span_id for span in rest)
    assert root.inputs == {"problem": "add-1", "prompt": "mend add()", "policy": "policy-00003"}
    assert root.outputs == {"status": "completed", "outcome": True, "rewards": {"verified": 1.0}}
    assert [span.name for span in rest] == [f"turn {number}" for number in range(turns)]
    if turns == 4:
        assert rest[2].inputs == {"observation": "saw 1: é", "prompt_tokens": 20}
        assert rest[2].outputs["completion"] == "message 2"
        assert rest[2].outputs["calls"] == [{"name": "edit", "arguments": {"line": 2}}]
        assert rest[2].outputs["observation"] == "saw 2: é"
        assert [str(span.status.status_code.value) for span in rest] == ["OK", "ERROR", "OK", "OK"]
        assert [span.end_time_ns - span.start_time_ns for span in rest] == [750_000_000] * 4
        assert root.end_time_ns - root.start_time_ns == 3_000_000_000
    assert trace.info.trace_metadata["mlflow.sourceRun"] == tracker.mlflow_run
    assert trace.info.tags["ratchet.outcome"] == "True" and trace.info.tags["ratchet.iteration"] == "3"


def test_calls_have_spans_below_their_turn_each_with_its_part_of_what_came_back(tracker: Tracker, home: Path) -> None:
    asked = (ToolCall(name="read", arguments={}), ToolCall(name="fly", arguments={"to": "é"}), ToolCall(name="never"))
    answers = (Answer(end=5, seconds=0.25), Answer(end=14, seconds=0.5, failed=True))
    plain = session("calls", 2)
    busy = plain.turns[1].model_copy(
        update={"calls": asked, "answers": answers, "observation": "1 one\nno wings\nerror: ...", "tool_seconds": 0.75}
    )
    tracker.log_trajectory_trace(plain.model_copy(update={"turns": (plain.turns[0], busy)}))
    spans = {span.name: span for span in connect(uri(home)).get_trace(trace_id("calls")).data.spans}
    assert set(spans) == {"session", "turn 0", "turn 1", "read", "fly"}
    read, fly, turn = spans["read"], spans["fly"], spans["turn 1"]
    assert read.parent_id == fly.parent_id == turn.span_id
    assert (read.inputs, read.outputs) == ({}, {"observation": "1 one"})
    assert (fly.inputs, fly.outputs) == ({"to": "é"}, {"observation": "no wings"})
    assert [span.span_type for span in (turn, read, fly)] == ["LLM", "TOOL", "TOOL"]
    assert [str(span.status.status_code.value) for span in (read, fly)] == ["OK", "ERROR"]
    assert read.start_time_ns == turn.start_time_ns + 500_000_000
    assert (read.end_time_ns, fly.end_time_ns) == (fly.start_time_ns, turn.end_time_ns)


def test_many_traces_are_found_from_the_run(tracker: Tracker, home: Path) -> None:
    tracker.log_trajectory_traces([(session(f"many-{number}", 2, outcome=None), None) for number in range(5)])
    tracker.log_trajectory_traces([])
    found = connect(uri(home)).search_traces(locations=[tracker.experiment], run_id=tracker.mlflow_run)
    assert [len(trace.data.spans) for trace in found] == [3] * 5
    assert {trace.info.state.value for trace in found} == {"ERROR"}


def test_spans_overlap_nowhere() -> None:
    root, *turns = session_spans(session("s", 3), ended_ns=10_000_000_000)
    assert (root.start_time_ns, root.end_time_ns) == (7_750_000_000, 10_000_000_000)
    assert [span.start_time_ns for span in turns[1:]] == [span.end_time_ns for span in turns[:-1]]
    assert turns[-1].end_time_ns == root.end_time_ns


def test_trace_is_whole_when_the_process_dies_right_after(home: Path) -> None:
    script = textwrap.dedent(
        f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_tracking import reopened, session
        from pathlib import Path
        tracker = reopened(Path({str(home)!r}), "killed")
        tracker.log_trajectory_trace(session("killed", 6))
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert ended.stdout == "" and "INFO" not in ended.stderr, "nothing is chatty"
    trace = connect(uri(home)).get_trace(trace_id("killed"))
    assert len(trace.data.spans) == 7
    assert trace.info.execution_duration == 4500


def test_telemetry_is_off_and_logs_are_quiet(tracker: Tracker) -> None:
    from mlflow.telemetry.utils import is_telemetry_disabled

    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert is_telemetry_disabled()
    assert logging.getLogger("mlflow").getEffectiveLevel() >= logging.WARNING


def test_telemetry_is_off_though_deepspeed_imports_mlflow_first() -> None:
    script = (
        "import models.policy, deepspeed, logging, mlflow\n"
        "from mlflow.telemetry.client import get_telemetry_client\n"
        "assert get_telemetry_client() is None\n"
        "assert logging.getLogger('mlflow').getEffectiveLevel() == logging.WARNING\n"
    )
    environment = {k: v for k, v in os.environ.items() if "TELEMETRY" not in k and not k.startswith("MLFLOW")}
    environment.pop("DO_NOT_TRACK", None)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, env=environment)
    assert ended.returncode == 0, ended.stderr[-2000:]


def test_modules_do_not_import_mlflow() -> None:
    script = "import sys, models.registry, tasks.tracking, tasks.release.publish; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=300, check=False).returncode == 0
