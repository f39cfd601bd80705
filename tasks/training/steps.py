"""The training stage's Prefect tasks: score the segments, train on the batch.

trainer + segments.parquet -> scores.parquet; trainer + batch.parquet -> policies/policy-000NN, checkpoint/
"""

from __future__ import annotations

from pathlib import Path

from prefect import task

from tasks.training.client import Trainer
from tasks.training.reports import MismatchReport, TrainReport


@task(name="score segments")
def score_segments(trainer: Trainer, segments: Path, scores: Path) -> MismatchReport:
    """Score every sampled token under the policy in training; the report feeds the mismatch gate."""
    return trainer.score(segments, scores)


@task(name="train policy")
def train_policy(
    trainer: Trainer, batch: Path, scores: Path, policy: Path, checkpoint: Path, iteration: int
) -> TrainReport:
    """Take the iteration's optimizer steps and write the next policy version with its optimizer state.

    Never retried: a second call would train a second time. A flow that was killed loads the previous version again.
    """
    return trainer.train(batch, scores, policy, checkpoint, iteration)
