"""Score segments under the current weights, and take an iteration's optimizer steps.

segments -> scores -> importance weights -> minibatches -> one step each -> TrainReport
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from data_contracts.errors import UserError
from data_contracts.records import Segment
from tasks.training import distributed
from tasks.training.config import TrainingConfig
from tasks.training.engine import TrainingEngine
from tasks.training.loss import clipped_tokens, policy_loss
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
from tasks.training.reports import TrainingDiverged, TrainReport
from tasks.training.scores import Score, mismatch, weights_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """Segments with advantages, and what the step needs to know of each: aligned lists."""

    segments: Sequence[Segment]
    scores: Sequence[Score]
    weights: Sequence[list[float]]

    def columns(self, members: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return old log-probabilities, advantages and weights [N] of these segments' sampled tokens (float32)."""
        old: list[float] = []
        advantages: list[float] = []
        weights: list[float] = []
        for i in members:
            old += self.scores[i].logprobs
            weights += self.weights[i]
            given = self.segments[i].advantages or []
            advantages += [given[t] for t in sampled_positions(self.segments[i])]
        old_t, advantages_t, weights_t = torch.tensor([old, advantages, weights], device=device).unbind(0)
        return old_t, advantages_t, weights_t


@dataclass(slots=True)
class Tally:
    """What an iteration's optimizer steps did, over all ranks."""

    loss: float = 0.0
    clipped: float = 0.0
    norms: list[float] = field(default_factory=list)
    skipped: int = 0
    dealt: list[list[int]] = field(default_factory=list)
    """the segments of each step taken, by index"""


def score(engine: TrainingEngine, segments: Sequence[Segment]) -> list[Score]:
    """Return every segment's log-probabilities and entropies at the rollouts' temperature, without gradient."""
    groups = _groups(engine, [computed_length(s) for s in segments])
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


def train(engine: TrainingEngine, batch: Batch, step: int, progress: Path | None = None) -> Tally:
    """Take the optimizer steps of iteration `step`; with `progress`, go on from what was saved there in its middle."""
    config = engine.config
    name = _name_of(batch, config, step)
    saved = engine.load_progress(progress, name) if progress else None
    tally = Tally(**saved["tally"]) if saved else Tally()
    if saved:
        log.info("iteration %d goes on after %d of its optimizer steps", step, len(tally.dealt))
    dealt = [
        part
        for epoch in range(config.epochs)
        for part in minibatches(batch.segments, config.minibatches, seed=config.seed, iteration=step, epoch=epoch)
    ]
    for done, part in enumerate(dealt[len(tally.dealt) :], start=len(tally.dealt) + 1):
        _take_step(engine, batch, part, config.learning_rate_at(step), tally)
        tally.dealt.append(part)
        if progress and config.checkpoint_steps and done % config.checkpoint_steps == 0 and done < len(dealt):
            engine.save_progress(progress, {"iteration": name, "tally": asdict(tally)})
    return tally


def _name_of(batch: Batch, config: TrainingConfig, step: int) -> str:
    """Return a digest of all that decides the iteration's steps; where and how fast they are computed does not."""
    free = {"processes", "nodes", "hostfile", "master_port", "threads", "micro_batch_tokens", "checkpoint_steps"}
    sha = hashlib.sha256(f"{step} {config.model_dump_json(exclude=free)}".encode())
    for segment, weights in zip(batch.segments, batch.weights, strict=True):
        sha.update(f"{segment.trajectory_id} {segment.token_ids} {segment.advantages} {len(weights)}".encode())
        sha.update(f"{segment.routed_experts}".encode())
    return sha.hexdigest()


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
    weights, mean_weight = weights_of(segments, scores, engine.config)
    progress = checkpoint_dir / f"{out_policy_dir.name}.progress"
    tally = train(engine, Batch(segments, scores, weights), step, progress)
    digest = engine.save(out_policy_dir, checkpoint_dir)
    if distributed.rank() == 0:
        shutil.rmtree(progress, ignore_errors=True)
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


def _take_step(engine: TrainingEngine, batch: Batch, part: Sequence[int], learning_rate: float, tally: Tally) -> None:
    """Take one optimizer step over the minibatch `part` (indices of segments), or count it as skipped."""
    denominator = float(sum(len(batch.scores[i].logprobs) for i in part))
    live = [i for i in part if has_signal(batch.segments[i])]
    groups = _groups(engine, [computed_length(batch.segments[i]) for i in live])
    loss, clipped = 0.0, 0.0
    for group in rank_share(groups, distributed.rank(), distributed.world_size()):
        part_loss, part_clipped = _accumulate(engine, batch, [live[i] for i in group], denominator)
        loss += part_loss
        clipped += part_clipped
    norm = engine.step(learning_rate)
    if norm is None:
        tally.skipped += 1
        if engine.skipped_in_a_row >= engine.config.max_skipped_in_a_row:
            raise TrainingDiverged(
                f"{engine.skipped_in_a_row} optimizer steps in a row had a loss or gradient that was not finite: "
                "lower training.learning_rate, or look for broken log-probabilities in the batch."
            )
        return
    loss, clipped = distributed.total([loss, clipped])
    tally.loss += loss
    tally.clipped += clipped
    tally.norms.append(norm)


def _accumulate(
    engine: TrainingEngine, batch: Batch, members: Sequence[int], denominator: float
) -> tuple[float, float]:
    """Add one micro-batch's gradient; return its loss and how many tokens were clipped."""
    config = engine.config
    packed = _pack(engine, batch.segments, members)
    logprobs = engine.compute(packed).logprobs
    if not members:
        engine.accumulate(logprobs.sum() * 0)
        return 0.0, 0.0
    old, advantages, weights = batch.columns(members, engine.device)
    mask = torch.ones_like(old)
    low, high = config.clip_low, config.clip_high
    loss = policy_loss(
        logprobs, old, advantages, mask, denominator=denominator, clip_low=low, clip_high=high, weights=weights
    )
    engine.accumulate(loss)
    clipped = clipped_tokens(logprobs, old, advantages, mask, clip_low=low, clip_high=high)
    return float(loss.detach()), float(clipped.sum())


_NOTHING = Segment(trajectory_id="", token_ids=[0, 0], loss_mask=[0, 1], rollout_logprobs=[0, 0], turn_index=[0, 0])


def _pack(engine: TrainingEngine, segments: Sequence[Segment], members: Sequence[int]) -> Packed:
    # a rank without work computes one token that counts for nothing: its collectives pair with the others'
    config = engine.config
    chosen = [segments[i] for i in members] or [_NOTHING]
    return pack(chosen, engine.device, packed=config.packed, replay=config.replay_routing)


def _groups(engine: TrainingEngine, lengths: Sequence[int]) -> list[list[int]]:
    return micro_batches(lengths, engine.config.micro_batch_tokens, packed=engine.config.packed)
