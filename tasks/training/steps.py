"""The training stage as Prefect tasks: score the segments, freeze the batch, train on it.

trainer + segments.parquet -> scores.parquet; batch.parquet -> gate; trainer + batch.parquet -> policy, checkpoint
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from data_contracts.batches import Ledger, statistics_of
from data_contracts.gates import Gate, Verdict
from data_contracts.store import read_frame
from data_contracts.validate import expect, validate
from tasks.training.client import Trainer
from tasks.training.reports import Diagnosis, MismatchReport, TrainReport


@task(name="score segments", cache_policy=NO_CACHE)
def score_segments(
    trainer: Trainer, segments: Path, scores: Path | None, number: int, older: Mapping[int, Path] | None = None
) -> MismatchReport:
    """Score every token under the policy that the trainer holds, version `number`; the report feeds the gate.

    `older` are the files with the scores of tokens that older versions sampled.
    """
    return trainer.score(segments, scores, number, older)


@task(name="score stale tokens", cache_policy=NO_CACHE)
def rescore_segments(trainer: Trainer, segments: Path, scores: Path, number: int) -> Path:
    """Score the tokens of an older version under it; the trainer holds that version. Returns the scores' file."""
    trainer.rescore(segments, scores, number)
    return scores


@task(name="diagnose mismatch", cache_policy=NO_CACHE)
def diagnose_mismatch(
    trainer: Trainer, segments: Path, scores: Path, policy: Path, number: int, versions: Mapping[str, Path | None]
) -> Diagnosis:
    """What a mismatch that is too large points to; for the gate's message."""
    return trainer.diagnose(segments, scores, policy, number, versions)


@task(name="freeze batch", cache_policy=NO_CACHE)
def freeze_batch(batch: Path, trajectories: Path, ledger: Ledger | None = None, iteration: int = 0) -> list[Gate]:
    """Whether the batch holds to its contract, as it lies on disk: each of its rows, and the tables as a whole.

    With a ledger, both tables are compared with those of the last accepted iterations, and their pages are kept there.
    """
    frames = {"segments": read_frame(batch, "segments"), "trajectories": read_frame(trajectories, "trajectories")}
    rows = validate("segments", frames["segments"], companions=frames)
    before = {table: ledger.before(table, iteration) if ledger else [] for table in frames}
    reports = [expect(table, frame, before[table]) for table, frame in frames.items()]
    gates = [rows.gate(), *(report.gate() for report in reports)]
    if ledger is not None:
        ledger.show(iteration, reports)
        if all(gate.verdict is Verdict.PASS for gate in gates):
            for table, frame in frames.items():
                ledger.accept(table, iteration, statistics_of(table, frame))
    return gates


@task(name="train policy", cache_policy=NO_CACHE)
def train_policy(
    trainer: Trainer, batch: Path, scores: Path, policy: Path, checkpoint: Path, iteration: int
) -> TrainReport:
    """Take the iteration's optimizer steps and write the next policy version with its optimizer state.

    Never retried: a second call would train a second time. A flow that was killed loads the previous version again.
    """
    return trainer.train(batch, scores, policy, checkpoint, iteration)
