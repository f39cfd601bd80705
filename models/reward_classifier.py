"""A reward model's body that is fine-tuned: a Hugging Face sequence classifier on verified rollouts.

base folder + segments with outcomes -> AutoModelForSequenceClassification (LoRA or whole) -> folder -> body, head

A causal base scores every turn's end of a segment in one pass: each token has seen nothing after it.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from data_contracts.config import Config
from data_contracts.errors import UserError
from data_contracts.records import Segment, Trajectory
from models.policy import publish_folder

if TYPE_CHECKING:
    import torch

FOLDER = "classifier"
"""Beside probe.joblib, which holds its head, calibrator and limit."""


class ClassifierConfig(Config):
    """How the classifier is fine-tuned."""

    weights: Literal["lora", "full"] = Field(default="lora", description="train an adapter, or the whole model")
    lora_r: int = Field(default=8, ge=1, description="rank of the adapter")
    epochs: int = Field(default=2, ge=1, description="passes over the segments of the train part")
    learning_rate: float = Field(default=1e-3, gt=0, description="of AdamW")
    batch_size: int = Field(default=32, ge=1, description="segments in one step")


def fine_tune(
    base: Path, trajectories: Sequence[Trajectory], segments: Sequence[Segment], folder: Path, config: ClassifierConfig,
    seed: int = 0,
) -> list[float]:  # fmt: skip
    """Fine-tune on the scorable rollouts and save to `folder`; the mean loss (nats) of each epoch is returned.

    Every turn's end is told the rollout's outcome; a rollout weighs 1, however many it has. Raises UserError for a base
    whose architecture has no sequence classifier.
    """
    import torch

    torch.manual_seed(seed)
    model = _open(base)
    trained = _with_adapter(model, config) if config.weights == "lora" else model
    outcome = {t.id: float(bool(t.outcome)) for t in trajectories if t.scorable}
    used = [s for s in segments if s.trajectory_id in outcome and any(s.loss_mask)]
    ends = Counter(s.trajectory_id for s in used for _ in turn_ends(s))
    optimizer = torch.optim.AdamW([p for p in trained.parameters() if p.requires_grad], lr=config.learning_rate)
    order, losses = np.random.default_rng(seed), []
    trained.train()
    for _ in range(config.epochs):
        total = 0.0
        for rows in _batches(order.permutation(len(used)).tolist(), config.batch_size):
            loss = _loss(trained, [used[row] for row in rows], outcome, ends)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        losses.append(total / max(len(used), 1))
    scratch = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    trained.save_pretrained(scratch)
    publish_folder(scratch, folder)
    return losses


def load_classifier(base: Path, folder: Path) -> tuple[torch.nn.Module, np.ndarray]:
    """A fine-tuned classifier without its head, float32 and eval, and the head's weights [H]."""
    if (folder / "adapter_config.json").exists():
        from peft import PeftModel

        model = PeftModel.from_pretrained(_open(base), str(folder)).merge_and_unload()
    else:
        model = _open(folder)
    head = model.score.weight.detach().float().cpu().numpy()[0].astype(np.float64)
    return model.eval().requires_grad_(False), head


def turn_ends(segment: Segment) -> list[int]:
    """The position of each turn's last sampled token."""
    pairs = zip(segment.turn_index, segment.loss_mask, strict=True)
    last = {turn: place for place, (turn, mask) in enumerate(pairs) if mask}
    return list(last.values())


def _open(folder: Path) -> Any:
    """A classifier with one logit; a head that the folder does not hold is new."""
    from transformers import AutoModelForSequenceClassification

    try:
        model = AutoModelForSequenceClassification.from_pretrained(str(folder), num_labels=1, dtype="float32")
    except ValueError as error:
        remedy = 'set reward.model = "probe" in the recipe'
        raise UserError(f"{folder}: no sequence classifier of this architecture ({error}): {remedy}.") from error
    if not hasattr(model, "score"):
        raise UserError(f'{folder}: its classifier scores no single token: set reward.model = "probe" in the recipe.')
    return model


def _with_adapter(model: Any, config: ClassifierConfig) -> Any:
    from peft import LoraConfig, TaskType, get_peft_model

    spec = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=config.lora_r, lora_alpha=2 * config.lora_r, target_modules="all-linear"
    )
    return get_peft_model(model, spec)


def _loss(model: Any, batch: Sequence[Segment], outcome: Mapping[str, float], ends: Mapping[str, int]) -> torch.Tensor:
    """Cross-entropy of the outcome at each turn's end, each rollout with one vote."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    ids_BT, seen_BT = padded(batch)
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden_BTH = plain.base_model(input_ids=ids_BT, attention_mask=seen_BT, use_cache=False)[0]
    places = [(row, place) for row, segment in enumerate(batch) for place in turn_ends(segment)]
    owners = [batch[row].trajectory_id for row, _ in places]
    rows_N, columns_N = (torch.tensor(column) for column in zip(*places, strict=True))
    logits_N = plain.score(hidden_BTH[rows_N, columns_N])[:, 0]
    truth_N = torch.tensor([outcome[name] for name in owners])
    votes_N = torch.tensor([1.0 / ends[name] for name in owners])
    return binary_cross_entropy_with_logits(logits_N, truth_N, weight=votes_N, reduction="sum") / votes_N.sum()


def padded(segments: Sequence[Segment]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask [B, T], padded at the right."""
    import torch

    longest = max(len(segment.token_ids) for segment in segments)
    ids_BT = torch.zeros(len(segments), longest, dtype=torch.long)
    seen_BT = torch.zeros(len(segments), longest, dtype=torch.long)
    for row, segment in enumerate(segments):
        ids_BT[row, : len(segment.token_ids)] = torch.tensor(segment.token_ids)
        seen_BT[row, : len(segment.token_ids)] = 1
    return ids_BT, seen_BT


def _batches(rows: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
