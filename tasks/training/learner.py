"""Score segments under the current weights, and take an iteration's optimizer steps.

segments -> scores (log-probabilities, entropies) -> importance weights -> minibatches -> steps -> TrainReport
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from data_contracts.errors import UserError
from data_contracts.records import Segment
from tasks.training import distributed
from tasks.training.config import TrainingConfig
from tasks.training.engine import TrainingEngine
from tasks.training.loss import clipped_tokens, policy_loss
from tasks.training.mismatch import importance_weights, mismatch_report
from tasks.training.packing import (
    Packed,
    computed_length,
    has_signal,
    micro_batches,
    minibatches,
    pack,
    rank_share,
    sampled_positions,
)
from tasks.training.reports import MismatchReport, TrainReport


class TrainingDiverged(RuntimeError):
    """Too many optimizer steps in a row were not finite: the run stops."""


@dataclass(frozen=True, slots=True)
class Score:
    """One segment under the trainer's weights: values at its sampled tokens only, in order (float64)."""

    logprobs: list[float]
    entropy: list[float]


@dataclass(slots=True)
class _Tally:
    loss: float = 0.0
    clipped: float = 0.0
    norms: list[float] = field(default_factory=list)
    skipped: int = 0


def score(engine: TrainingEngine, segments: Sequence[Segment]) -> list[Score]:
    """Return every segment's log-probabilities and entropies at the rollouts' temperature, without gradient."""
    groups = micro_batches([computed_length(s) for s in segments], engine.config.micro_batch_tokens)
    mine: dict[int, Score] = {}
    with torch.no_grad():
        for group in rank_share(groups, distributed.rank(), distributed.world_size()):
            packed = _pack(engine, segments, group)
            logprobs, entropy = (values.double().tolist() for values in engine.compute(packed))
            start = 0
            for index, count in zip(group, packed.counts, strict=False):
                mine[index] = Score(logprobs[start : start + count], entropy[start : start + count])
                start += count
    everyone = {index: one for part in distributed.gather(mine) for index, one in part.items()}
    return [everyone[index] for index in range(len(segments))]


def mismatch(segments: Sequence[Segment], scores: Sequence[Score]) -> MismatchReport:
    """Compare the trainer's log-probabilities with those the tokens were sampled with."""
    return mismatch_report(*_grid(segments, scores))


def train(
    engine: TrainingEngine, segments: Sequence[Segment], scores: Sequence[Score], step: int
) -> tuple[_Tally, float]:
    """Take the optimizer steps of iteration `step`; return what happened and the mean importance weight."""
    config = engine.config
    weights, mean_weight = _weights(segments, scores, config)
    tally = _Tally()
    for epoch in range(config.epochs):
        parts = minibatches(segments, config.minibatches, seed=config.seed, iteration=step, epoch=epoch)
        for part in parts:
            _take_step(engine, segments, scores, weights, part, config.learning_rate_at(step), tally)
    return tally, mean_weight


def train_iteration(
    engine: TrainingEngine,
    segments: Sequence[Segment],
    scores: Sequence[Score],
    *,
    out_policy_dir: Path,
    checkpoint_dir: Path,
    step: int,
) -> TrainReport:
    """Train on a batch, save the new policy and its optimizer state, and report."""
    began, began_cpu = time.monotonic(), time.process_time()
    tokens = sum(len(one.logprobs) for one in scores)
    if tokens == 0:
        raise UserError("the batch holds no sampled token: there is nothing to train on.")
    tally, mean_weight = train(engine, segments, scores, step)
    digest = engine.save(out_policy_dir, checkpoint_dir)
    applied = len(tally.norms)
    return TrainReport(
        loss=tally.loss / max(1, applied),
        grad_norm=sum(tally.norms) / max(1, applied),
        clip_fraction=tally.clipped / (tokens * engine.config.epochs),
        entropy=sum(sum(one.entropy) for one in scores) / tokens,
        tokens=tokens,
        steps=applied,
        skipped=tally.skipped,
        idle_segments=sum(not has_signal(segment) for segment in segments),
        mean_abs_diff=mismatch(segments, scores).mean_abs_diff,
        mean_weight=mean_weight,
        learning_rate=engine.config.learning_rate_at(step),
        digest=digest,
        seconds=time.monotonic() - began,
        cpu_seconds=time.process_time() - began_cpu,
    )


def _take_step(
    engine: TrainingEngine,
    segments: Sequence[Segment],
    scores: Sequence[Score],
    weights: Sequence[list[float]],
    part: Sequence[int],
    learning_rate: float,
    tally: _Tally,
) -> None:
    config = engine.config
    denominator = float(sum(len(scores[i].logprobs) for i in part))
    live = [i for i in part if has_signal(segments[i])]
    groups = micro_batches([computed_length(segments[i]) for i in live], config.micro_batch_tokens)
    loss, clipped = 0.0, 0.0
    for group in rank_share(groups, distributed.rank(), distributed.world_size()):
        members = [live[i] for i in group]
        packed = _pack(engine, segments, members)
        old, advantages, weight = _columns(segments, scores, weights, members, packed, engine.device)
        logprobs = engine.compute(packed).logprobs
        mask = torch.ones_like(logprobs) if members else torch.zeros_like(logprobs)
        clip = {"clip_low": config.clip_low, "clip_high": config.clip_high}
        part_loss = policy_loss(
            logprobs, old, advantages, mask, denominator=denominator, weights=weight, **clip
        )
        engine.accumulate(part_loss)
        loss += float(part_loss.detach())
        clipped += float(clipped_tokens(logprobs, old, advantages, mask, **clip).sum())
    norm = engine.step(learning_rate)
    loss, clipped = distributed.total([loss, clipped])
    if norm is None:
        tally.skipped += 1
        if engine.skipped_in_a_row >= config.max_skipped_in_a_row:
            raise TrainingDiverged(f"{engine.skipped_in_a_row} optimizer steps in a row were not finite")
        return
    tally.loss += loss
    tally.clipped += clipped
    tally.norms.append(norm)


_NOTHING = Segment(
    trajectory_id="", token_ids=[0, 0], loss_mask=[0, 1], rollout_logprobs=[0.0, 0.0], turn_index=[0, 0]
)


def _pack(engine: TrainingEngine, segments: Sequence[Segment], members: Sequence[int]) -> Packed:
    # a rank without work computes one token whose result is masked: its collectives pair with the others'
    return pack([segments[i] for i in members] or [_NOTHING], engine.device)


def _columns(
    segments: Sequence[Segment],
    scores: Sequence[Score],
    weights: Sequence[list[float]],
    members: Sequence[int],
    packed: Packed,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return old log-probabilities, advantages and weights [N] in the order of `packed.targets`."""
    columns = torch.zeros(3, len(packed.targets), dtype=torch.float64)
    rows = [
        (old, segment_advantages[t], weight)
        for i in members
        for segment_advantages in [segments[i].advantages or []]
        for t, old, weight in zip(sampled_positions(segments[i]), scores[i].logprobs, weights[i], strict=True)
    ]
    if rows:
        columns = torch.tensor(rows, dtype=torch.float64).T
    old, advantages, weight = columns.float().to(device).unbind(0)
    return old, advantages, weight


def _weights(
    segments: Sequence[Segment], scores: Sequence[Score], config: TrainingConfig
) -> tuple[list[list[float]], float]:
    """Return each segment's importance weights at its sampled tokens, and their mean over all."""
    train_logprobs, rollout_logprobs, mask = _grid(segments, scores)
    grid = importance_weights(
        train_logprobs,
        rollout_logprobs,
        mask,
        method=config.mismatch,
        low=config.mismatch_low,
        high=config.mismatch_high,
    )
    rows = [row[: len(one.logprobs)].tolist() for row, one in zip(grid, scores, strict=True)]
    return rows, float(grid.sum() / mask.sum().clamp(min=1))


def _grid(segments: Sequence[Segment], scores: Sequence[Score]) -> tuple[Tensor, Tensor, Tensor]:
    """Return trainer's and engine's log-probabilities and the mask [B, most sampled tokens of a row], float64.

    Sampled tokens stand side by side, so the first one after an observation follows the last one before it.
    """
    width = max((len(one.logprobs) for one in scores), default=0)
    train_logprobs, rollout_logprobs, mask = torch.zeros(3, len(segments), width, dtype=torch.float64)
    for row, (segment, one) in enumerate(zip(segments, scores, strict=True)):
        count = len(one.logprobs)
        train_logprobs[row, :count] = torch.tensor(one.logprobs, dtype=torch.float64)
        sampled = [segment.rollout_logprobs[t] for t in sampled_positions(segment)]
        rollout_logprobs[row, :count] = torch.tensor(sampled, dtype=torch.float64)
        mask[row, :count] = 1
    return train_logprobs, rollout_logprobs, mask


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


def _aligned(segments: Sequence[Segment], values: Sequence[list[float]]) -> list[list[float]]:
    columns = []
    for segment, sampled in zip(segments, values, strict=True):
        column = [0.0] * len(segment.token_ids)
        for t, value in zip(sampled_positions(segment), sampled, strict=True):
            column[t] = value
        columns.append(column)
    return columns
