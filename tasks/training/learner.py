"""Score segments under the current weights, and take an iteration's optimizer steps.

segments -> scores -> importance weights -> minibatches -> one step each -> TrainReport
"""

from __future__ import annotations

import hashlib
import logging
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from data_contracts.errors import UserError
from data_contracts.records import Segment
from tasks.training import distributed
from tasks.training.config import TrainingConfig
from tasks.training.engine import TrainingEngine
from tasks.training.loss import base_kl, clipped_tokens, extreme_tokens, policy_loss
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
    """Segments with advantages, and what the step needs to know of each: aligned lists.

    `base` holds the scores under the base alone, where KL to it is in the loss.
    """

    segments: Sequence[Segment]
    scores: Sequence[Score]
    weights: Sequence[list[float]]
    base: Sequence[Score] | None = None

    def columns(self, members: Sequence[int], device: torch.device) -> Columns:
        """Return what is known of these segments' sampled tokens, one row a segment (float32)."""
        given = [self.segments[i].advantages or [] for i in members]
        sampled = [sampled_positions(self.segments[i]) for i in members]
        old = [self.scores[i].logprobs for i in members]
        return Columns(
            old=_rows(old, device),
            advantages=_rows([[a[t] for t in at] for a, at in zip(given, sampled, strict=True)], device),
            weights=_rows([self.weights[i] for i in members], device),
            base=_rows([(self.base or self.scores)[i].logprobs for i in members], device),
            mask=_rows([[1.0] * len(row) for row in old], device).bool(),
        )


class Columns(NamedTuple):
    """Sampled tokens [B, longest], row by row, padded with zeros; `mask` (bool) is where there are any."""

    old: Tensor
    advantages: Tensor
    weights: Tensor
    base: Tensor
    mask: Tensor


@dataclass(slots=True)
class Tally:
    """What an iteration's optimizer steps did, over all ranks."""

    loss: float = 0.0
    clipped: float = 0.0
    extreme: float = 0.0
    base_kl: float = 0.0
    norms: list[float] = field(default_factory=list)
    skipped: int = 0
    skipped_by_loss: int = 0
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


def base_scores(engine: TrainingEngine, segments: Sequence[Segment]) -> list[Score]:
    """Return the scores of segments under the base alone."""
    with engine.as_base():
        return score(engine, segments)


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
    base = base_scores(engine, segments) if engine.config.kl_coefficient else None
    tally = train(engine, Batch(segments, scores, weights, base), step, progress)
    digest = engine.save(out_policy_dir, checkpoint_dir)
    if distributed.rank() == 0:
        shutil.rmtree(progress, ignore_errors=True)
    applied = len(tally.norms)
    return TrainReport(
        loss=tally.loss / max(1, applied),
        grad_norm=sum(tally.norms) / max(1, applied),
        clip_fraction=tally.clipped / (tokens * engine.config.epochs),
        extreme_tokens=int(tally.extreme),
        base_kl=tally.base_kl / (tokens * engine.config.epochs) if base else None,
        entropy=sum(sum(one.entropy) for one in scores) / tokens,
        tokens=tokens,
        steps=applied,
        skipped=tally.skipped,
        skipped_by_loss=tally.skipped_by_loss,
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
    # a penalty has a gradient where no advantage has one
    penalised = batch.base is not None or engine.config.objective == "dppo"
    live = [i for i in part if has_signal(batch.segments[i]) or (penalised and computed_length(batch.segments[i]))]
    groups = _groups(engine, [computed_length(batch.segments[i]) for i in live])
    sums = Sums()
    for group in rank_share(groups, distributed.rank(), distributed.world_size()):
        part_sums = _accumulate(engine, batch, [live[i] for i in group], denominator)
        sums = Sums(*(a + b for a, b in zip(sums, part_sums, strict=True)))
    norm = engine.step(learning_rate)
    sums = Sums(*distributed.total([*sums]))
    tally.extreme += sums.extreme
    if norm is None:
        _skip(engine, batch.segments[part[0]], sums.loss, tally)
        return
    tally.loss += sums.loss
    tally.clipped += sums.clipped
    tally.base_kl += sums.base_kl
    tally.norms.append(norm)


def _skip(engine: TrainingEngine, first: Segment, loss: float, tally: Tally) -> None:
    """Count a step that was not applied, say why, and stop the run when too many in a row were not."""
    broken = "gradient" if math.isfinite(loss) else "loss"
    where = f"{first.trajectory_id}/{first.index}"
    log.warning("optimizer step skipped: its %s was not finite; first segment %s", broken, where)
    tally.skipped += 1
    tally.skipped_by_loss += broken == "loss"
    if engine.skipped_in_a_row >= engine.config.max_skipped_in_a_row:
        raise TrainingDiverged(
            f"{engine.skipped_in_a_row} optimizer steps in a row had a loss or gradient that was not finite, the last "
            f"a {broken}: lower training.learning_rate, or look for broken log-probabilities in the batch."
        )


class Sums(NamedTuple):
    """What micro-batches add up to; counts are of tokens, `base_kl` is a sum over them (nats)."""

    loss: float = 0.0
    clipped: float = 0.0
    extreme: float = 0.0
    base_kl: float = 0.0


def _accumulate(engine: TrainingEngine, batch: Batch, members: Sequence[int], denominator: float) -> Sums:
    """Add one micro-batch's gradient; return its part of the step's sums."""
    packed = _pack(engine, batch.segments, members)
    flat = engine.compute(packed).logprobs
    if not members:
        engine.accumulate(flat.sum() * 0)
        return Sums()
    logprobs = pad_sequence(flat.split(packed.counts), batch_first=True)
    given, config = batch.columns(members, engine.device), engine.config
    region: dict[str, Any] = {name: getattr(config, name) for name in ("clip_low", "clip_high", "objective")}
    tokens = (logprobs, given.old, given.advantages, given.mask)
    loss = policy_loss(
        *tokens, denominator=denominator, weights=given.weights, ratio_penalty=config.ratio_penalty, **region
    )
    kl = base_kl(logprobs, given.base, given.mask, denominator=denominator) if batch.base else torch.zeros(())
    loss = loss + config.kl_coefficient * kl if batch.base else loss
    engine.accumulate(loss)
    clipped, extreme = clipped_tokens(*tokens, **region), extreme_tokens(logprobs, given.old, given.mask)
    return Sums(float(loss.detach()), float(clipped.sum()), float(extreme.sum()), float(kl.detach()) * denominator)


def _rows(values: Sequence[Sequence[float]], device: torch.device) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in values], batch_first=True).to(device)


_NOTHING = Segment(trajectory_id="", token_ids=[0, 0], loss_mask=[0, 1], rollout_logprobs=[0, 0], turn_index=[0, 0])


def _pack(engine: TrainingEngine, segments: Sequence[Segment], members: Sequence[int]) -> Packed:
    # a rank without work computes one token that counts for nothing: its collectives pair with the others'
    config = engine.config
    chosen = [segments[i] for i in members] or [_NOTHING]
    return pack(chosen, engine.device, packed=config.packed, replay=config.replay_routing)


def _groups(engine: TrainingEngine, lengths: Sequence[int]) -> list[list[int]]:
    if engine.config.batch_invariant:
        return [[index] for index in range(len(lengths))]
    return micro_batches(lengths, engine.config.micro_batch_tokens, packed=engine.config.packed)
