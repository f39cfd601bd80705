"""One MLflow run for one run of ours: metrics, data sets, traces and artifacts, gone on with after a kill.

run id -> Tracker -> the MLflow run tagged with it -> log_metrics, log_dataset, log_trajectory_trace, finish

What a redone stage logs again is not counted twice: a metric's step that is there is left, a data set and a trace
have ids made from their content.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from data_contracts.errors import UserError
from data_contracts.records import Trajectory
from models.mlflow_client import connect, experiment_id, quoted
from tasks.traces import session_spans, trace_info

if TYPE_CHECKING:
    import pandas as pd

RUN_TAG = "ratchet.run_id"
DIGEST_LENGTH = 36
"""Characters of a data set's digest that MLflow keeps; the whole digest is in its source."""
METRICS_PER_CALL, PARAMS_PER_CALL = 1000, 100
"""The most that MLflow takes in one call."""

Finish = Literal["FINISHED", "FAILED", "KILLED"]


class Tracker:
    """Writes to the MLflow run of one of our runs. Every call has reached the database when it returns."""

    def __init__(
        self, tracking_uri: str, artifact_root: Path | str, experiment: str, run_name: str, run_id: str | None = None
    ) -> None:
        """Open the run tagged `ratchet.run_id` = `run_id` (default: the run's name) again, or make it."""
        self._client = connect(tracking_uri)
        from mlflow.tracing.client import TracingClient  # after `connect`, which turns telemetry off first

        self._traces = TracingClient(tracking_uri)
        self.experiment = experiment_id(self._client, experiment, artifact_root)
        self._logged: dict[str, set[int]] = {}
        tag = run_id or run_name
        found = self._client.search_runs([self.experiment], f"tags.`{RUN_TAG}` = {quoted(tag)}", max_results=1)
        self._resumed = bool(found)
        if found:
            self.mlflow_run = str(found[0].info.run_id)
            self._client.update_run(self.mlflow_run, status="RUNNING")
        else:
            made = self._client.create_run(self.experiment, tags={RUN_TAG: tag}, run_name=run_name)
            self.mlflow_run = str(made.info.run_id)

    def log_metrics(self, metrics: Mapping[str, float | int | bool | None], step: int) -> None:
        """Log one iteration's metrics in one call. None is left out; what `step` already has is not logged again."""
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        rows = [
            Metric(key, float(value), now, step)
            for key, value in metrics.items()
            if value is not None and step not in self._steps(key)
        ]
        for chunk in _chunks(rows, METRICS_PER_CALL):
            self._client.log_batch(self.mlflow_run, metrics=chunk)
        for row in rows:
            self._logged[row.key].add(step)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log settings; nested ones become dotted names. MLflow refuses another value under a name it has."""
        from mlflow.entities import Param

        rows = [Param(key, str(value)[:6000]) for key, value in _flat("", params)]
        for chunk in _chunks(rows, PARAMS_PER_CALL):
            self._client.log_batch(self.mlflow_run, params=chunk)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        from mlflow.entities import RunTag

        self._client.log_batch(self.mlflow_run, tags=[RunTag(key, value) for key, value in tags.items()])

    def log_dataset(self, name: str, data: pd.DataFrame | Path | str, digest: str, context: str) -> None:
        """Link a data set to the run: its name, digest (sha256), source, columns and row count.

        `data` is a frame, or the path of a Parquet or JSON-lines file. `context` says what for, e.g. "training".
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag

        source = {"path": str(data) if isinstance(data, (str, Path)) else "memory", "digest": digest}
        schema, rows = _describe(data)
        dataset = Dataset(
            name=name,
            digest=digest[:DIGEST_LENGTH],
            source_type="local",
            source=json.dumps(source),
            schema=json.dumps({"mlflow_colspec": schema}),
            profile=json.dumps({"num_rows": rows}),
        )
        tags = [InputTag("mlflow.data.context", context), InputTag("ratchet.digest", digest)]
        self._client.log_inputs(self.mlflow_run, [DatasetInput(dataset, tags)])

    def log_trajectory_trace(self, trajectory: Trajectory, *, prompt: str | None = None) -> None:
        """Write one trajectory as a trace of turns + 1 spans, whole when this returns. `prompt`: the problem's text."""
        self.log_trajectory_traces([(trajectory, prompt)])

    def log_trajectory_traces(self, sessions: Sequence[tuple[Trajectory, str | None]]) -> None:
        """Write several trajectories with their prompts as traces, all spans in one transaction."""
        if not sessions:
            return
        traced = [(trajectory, session_spans(trajectory, prompt=prompt)) for trajectory, prompt in sessions]
        # Spans first: a trace that is listed has them, wherever a kill falls.
        self._traces.log_spans(self.experiment, [span for _, spans in traced for span in spans])
        for trajectory, spans in traced:
            self._traces.start_trace(trace_info(trajectory, spans, self.experiment, self.mlflow_run))

    def log_artifacts(self, path: Path, folder: str | None = None) -> None:
        """Copy a file or a folder's contents into the run's artifacts, under `folder`."""
        if not path.exists():
            raise UserError(f"{path} does not exist, so it cannot be logged: run the stage that makes it first.")
        log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        log(self.mlflow_run, str(path), folder)

    def finish(self, status: Finish = "FINISHED") -> None:
        """Close the MLflow run; a later Tracker with the same run id opens it again."""
        self._client.set_terminated(self.mlflow_run, status=status)

    def _steps(self, key: str) -> set[int]:
        """Steps logged for a metric; read from MLflow once, when the run was there before this process."""
        if key not in self._logged:
            history = self._client.get_metric_history(self.mlflow_run, key) if self._resumed else []
            self._logged[key] = {metric.step for metric in history}
        return self._logged[key]


def _describe(data: pd.DataFrame | Path | str) -> tuple[list[dict[str, str]], int]:
    """Columns (name and type) and row count."""
    if not isinstance(data, (str, Path)):
        return [{"name": str(name), "type": str(kind)} for name, kind in data.dtypes.items()], len(data)
    path = Path(data)
    if not path.is_file():
        raise UserError(f"data set {path} does not exist: run the stage that makes it first.")
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        table = pq.ParquetFile(path)
        return [{"name": field.name, "type": str(field.type)} for field in table.schema_arrow], table.metadata.num_rows
    with path.open("rb") as handle:
        return [], sum(1 for line in handle if line.strip())


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), inner)
    elif not (isinstance(value, float) and math.isnan(value)):
        yield prefix, value


def _chunks(rows: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
