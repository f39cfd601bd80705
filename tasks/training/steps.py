"""The training stage as Prefect tasks."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from data_contracts.gates import Gate
from data_contracts.store import read_frame
from data_contracts.validate import expect
from tasks.training.client import Trainer
from tasks.training.reports import MismatchReport, TrainReport


@task(name="score", cache_policy=NO_CACHE)
def score_segments(trainer: Trainer, segments: Path, scores: Path) -> MismatchReport:
    """Log-probabilities of every token under the weights that are about to be trained."""
    return trainer.score(segments, scores)


@task(name="freeze batch", cache_policy=NO_CACHE)
def freeze_batch(batch: Path) -> Gate:
    """What Great Expectations says of the frozen batch."""
    return expect("segments", read_frame(batch, "segments")).gate()


@task(name="train", cache_policy=NO_CACHE)
def train_policy(
    trainer: Trainer, batch: Path, scores: Path, policy: Path, checkpoint: Path, iteration: int
) -> TrainReport:
    """One iteration of training; `policy` is the folder of the new version."""
    return trainer.train(batch, scores, policy, checkpoint, iteration)
