"""The trainer's view of a batch: log-probability and entropy at every sampled token.

segments + scores <-> scores.parquet (aligned with the tokens); -> [B,T] tensors for the mismatch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from data_contracts.errors import UserError
from data_contracts.records import Segment
from tasks.training.config import TrainingConfig
from tasks.training.mismatch import importance_weights, mismatch_report
from tasks.training.packing import sampled_positions
from tasks.training.reports import MismatchReport


@dataclass(frozen=True, slots=True)
class Score:
    """One segment under the trainer's weights: values at its sampled tokens only, in order (float64)."""

    logprobs: list[float]
    entropy: list[float]


def mismatch(
    segments: Sequence[Segment],
    scores: Sequence[Score],
    number: int | None = None,
    older: Mapping[int, Path] | None = None,
) -> MismatchReport:
    """Compare the trainer's log-probabilities with those the tokens were sampled with.

    `number` is the policy version that the scores are of, `older` the files with those of older versions. Each token is
    compared under the version that sampled it; tokens of a version without scores are left out. Without `number` all
    tokens count as of the scores' version.
    """
    current, rollout, mask = _grid(segments, scores)
    turns = _column([segment.turn_index for segment in segments], mask)
    if number is None:
        return mismatch_report(current, rollout, mask, turns)
    sampled_by = _sampled_by(segments, number, mask)
    train, known = current.clone(), sampled_by == number
    for version, path in (older or {}).items():
        mine = sampled_by == version
        train[mine] = _grid(segments, _scores_of_version(path, segments, version))[0][mine]
        known |= mine
    stale = mask & known & (sampled_by != number)
    apart = mismatch_report(current, train, stale, turns) if bool(stale.any()) else None
    return mismatch_report(train, rollout, mask & known, turns).model_copy(update={"staleness": apart})


def of_version(segments: Sequence[Segment], number: int) -> list[Segment]:
    """The segments with tokens that policy version `number` sampled."""
    return [segment for segment in segments if number in (segment.policy_numbers or ())]


def _scores_of_version(path: Path, segments: Sequence[Segment], number: int) -> list[Score]:
    """Scores of all segments; those without tokens of that version were not scored, and are zeros."""
    found = iter(read_scores(path, of_version(segments, number)))
    nothing = ([0.0] * len(sampled_positions(segment)) for segment in segments)
    return [
        next(found) if number in (segment.policy_numbers or ()) else Score(zeros, zeros)
        for segment, zeros in zip(segments, nothing, strict=True)
    ]


def _sampled_by(segments: Sequence[Segment], number: int, like: Tensor) -> Tensor:
    """The version that sampled each token [B,T]; `number` where a segment does not say."""
    rows = [segment.policy_numbers or [number] * len(segment.token_ids) for segment in segments]
    return _column(rows, like)


def _column(rows: Sequence[list[int]], like: Tensor) -> Tensor:
    """Rows of integers as one tensor [B,T], -1 beyond their end."""
    grid = torch.full(like.shape, -1, dtype=torch.long)
    for row, values in enumerate(rows):
        grid[row, : len(values)] = torch.tensor(values, dtype=torch.long)
    return grid


def weights_of(
    segments: Sequence[Segment], scores: Sequence[Score], config: TrainingConfig
) -> tuple[list[list[float]], float]:
    """Return each segment's importance weights at its sampled tokens, and their mean over all tokens."""
    train_logprobs, rollout_logprobs, mask = _grid(segments, scores)
    low, high = config.mismatch_low, config.mismatch_high
    grid = importance_weights(train_logprobs, rollout_logprobs, mask, method=config.mismatch, low=low, high=high)
    rows = [row[keep].tolist() for row, keep in zip(grid, mask, strict=True)]
    return rows, float(grid.sum() / mask.sum().clamp(min=1))


def write_scores(path: Path, segments: Sequence[Segment], scores: Sequence[Score]) -> None:
    """Write one row a segment: `logprobs` and `entropy` as long as its tokens, 0 where nothing was sampled."""
    table = pa.table(
        {
            "trajectory_id": pa.array([s.trajectory_id for s in segments], pa.string()),
            "index": pa.array([s.index for s in segments], pa.int64()),
            "logprobs": pa.array(_aligned(segments, [s.logprobs for s in scores]), pa.list_(pa.float64())),
            "entropy": pa.array(_aligned(segments, [s.entropy for s in scores]), pa.list_(pa.float64())),
        }
    )
    scratch = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, scratch)
    scratch.replace(path)


def read_scores(path: Path, segments: Sequence[Segment]) -> list[Score]:
    """Return the scores of exactly these segments; one that was not scored, or has another length, is a UserError."""
    rows = {(row["trajectory_id"], row["index"]): row for row in pq.read_table(path).to_pylist()}
    scores = []
    for segment in segments:
        row = rows.get((segment.trajectory_id, segment.index))
        if row is None or len(row["logprobs"]) != len(segment.token_ids):
            raise UserError(
                f"{path} has no score of {len(segment.token_ids)} tokens for segment "
                f"{segment.trajectory_id}/{segment.index}: score the same segments that are trained on."
            )
        at = sampled_positions(segment)
        scores.append(Score([row["logprobs"][t] for t in at], [row["entropy"][t] for t in at]))
    return scores


def _grid(segments: Sequence[Segment], scores: Sequence[Score]) -> tuple[Tensor, Tensor, Tensor]:
    """Return trainer's and engine's log-probabilities (float64) and the mask (bool), each [B, longest segment]."""
    shape = (len(segments), max((len(s.token_ids) for s in segments), default=0))
    train_logprobs, rollout_logprobs = torch.zeros(2, *shape, dtype=torch.float64)
    mask = torch.zeros(shape, dtype=torch.bool)
    for row, (segment, one) in enumerate(zip(segments, scores, strict=True)):
        length = len(segment.token_ids)
        mask[row, :length] = torch.tensor(segment.loss_mask, dtype=torch.bool)
        rollout_logprobs[row, :length] = torch.tensor(segment.rollout_logprobs, dtype=torch.float64)
        train_logprobs[row, mask[row]] = torch.tensor(one.logprobs, dtype=torch.float64)
    return train_logprobs, rollout_logprobs, mask


def _aligned(segments: Sequence[Segment], values: Sequence[list[float]]) -> list[list[float]]:
    columns = []
    for segment, sampled in zip(segments, values, strict=True):
        column = [0.0] * len(segment.token_ids)
        for t, value in zip(sampled_positions(segment), sampled, strict=True):
            column[t] = value
        columns.append(column)
    return columns
