"""The DeepSpeed engine around the policy: compute, step, save, load.

Packed -> TokenLogprobs -> backward per micro-batch -> one step -> policy folder + checkpoint

DeepSpeed divides gradients by the number of ranks and counts micro-batches by itself; here the loss is already divided
by the whole step's tokens, so the ranks' division is undone and the caller owns the boundary
(`managed_gradient_accumulation: false`).
"""

from __future__ import annotations

import logging
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from ratchet_kernels import TokenLogprobs
from torch import Tensor, nn

from data_contracts.errors import UserError
from models.fingerprint import digest_folder
from models.policy import Base, publish_folder
from tasks.training import distributed
from tasks.training.checkpoints import Note, load_shards, read_note, write_checkpoint
from tasks.training.config import TrainingConfig
from tasks.training.packing import Packed
from tasks.training.scorer import PolicyScorer

log = logging.getLogger(__name__)


class TrainingEngine:
    """One policy version in training. Every rank calls every method, in the same order."""

    def __init__(self, base: Base, policy_dir: Path, config: TrainingConfig) -> None:
        self.config = config
        self.skipped_in_a_row = 0
        self._scorer = PolicyScorer(base, policy_dir, config)
        self.digest = digest_folder(policy_dir)
        self._engine = _initialize(self._scorer, config)
        self.device = self._engine.device

    def compute(self, packed: Packed) -> TokenLogprobs:
        """Return log-probabilities [N] of the sampled tokens, with gradient where torch records one."""
        return self._engine(
            packed.token_ids,
            packed.position_ids,
            packed.bounds,
            packed.positions,
            packed.targets,
            packed.routed_experts,
        )

    def as_base(self) -> AbstractContextManager[None]:
        """Within the context, compute what the base alone would, with the adapter switched off."""
        return self._scorer.as_base()

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradient of a micro-batch's loss, already divided by the step's denominator, to the step's."""
        # a loss that is not finite must reach the norm, which is what DeepSpeed decides by, on every rank
        poisoned = loss if bool(torch.isfinite(loss.detach())) else loss * torch.nan
        self._engine.backward(poisoned * distributed.world_size(), scale_wrt_gas=False)

    def step(self, learning_rate: float) -> float | None:
        """Clip and apply the accumulated gradient; return its norm, or None when it was not finite and was dropped."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        if self._engine.optimizer.overflow:
            self.skipped_in_a_row += 1
            return None
        self.skipped_in_a_row = 0
        return float(self._engine.get_global_grad_norm())

    def save(self, out_policy: Path, checkpoint_dir: Path) -> str:
        """Write the checkpoint `<checkpoint_dir>/<policy name>` and then the policy folder; return its digest.

        In this order, and each by a rename: whoever sees the policy also finds the optimizer state that belongs to it.
        """
        scratch = out_policy.with_name(f".{out_policy.name}.next")
        state = self.state()
        if distributed.rank() == 0:
            shutil.rmtree(scratch, ignore_errors=True)
            self._scorer.write(state, scratch)
        self.digest = distributed.share(digest_folder(scratch) if distributed.rank() == 0 else None)
        write_checkpoint(self._engine, checkpoint_dir / out_policy.name, self._note())
        if distributed.rank() == 0:
            publish_folder(scratch, out_policy)
        return self.digest

    def load_checkpoint(self, policy_dir: Path, checkpoint_dir: Path) -> None:
        """Restore optimizer state and counters saved together with the policy. Another policy's are a UserError."""
        folder = checkpoint_dir / policy_dir.name
        note = read_note(folder)
        if note.digest != digest_folder(policy_dir):
            raise UserError(f"{folder} belongs to other weights than {policy_dir}: give the checkpoint of that policy.")
        self._load(folder, note)

    def save_progress(self, folder: Path, progress: dict[str, Any]) -> None:
        """Write weights and optimizer state in the middle of an iteration that began with the policy `digest`."""
        write_checkpoint(self._engine, folder, self._note(progress))

    def load_progress(self, folder: Path, iteration: str) -> dict[str, Any] | None:
        """Go on from the middle of this very iteration, if it was saved; return how far it is.

        `iteration` names it: what was saved of another one, or of one that began with other weights, is left alone.
        """
        if not folder.is_dir():
            return None
        note = read_note(folder)
        if note.digest != self.digest or note.progress is None or note.progress["iteration"] != iteration:
            return None
        self._load(folder, note)
        return note.progress

    def state(self) -> dict[str, Tensor]:
        """Return the trained weights by their names in the policy, whole and on the CPU; on every rank."""
        state = {}
        for name, parameter in self._scorer.trained():
            with self._gathered(parameter):
                state[name] = parameter.detach().cpu().contiguous().clone()
        return state

    def close(self) -> None:
        """Drop DeepSpeed's hooks and buffers."""
        self._engine.destroy()

    def _load(self, folder: Path, note: Note) -> None:
        load_shards(self._engine, folder, note)
        self.skipped_in_a_row = note.skipped_in_a_row

    def _note(self, progress: dict[str, Any] | None = None) -> Note:
        return Note(
            digest=self.digest,
            processes=distributed.world_size(),
            zero_stage=self.config.zero_stage,
            skipped_in_a_row=self.skipped_in_a_row,
            progress=progress,
        )

    def _gathered(self, parameter: nn.Parameter) -> AbstractContextManager[Any]:
        if self.config.zero_stage < 3:
            return nullcontext()
        import deepspeed

        return deepspeed.zero.GatheredParameters([parameter])


def deepspeed_config(config: TrainingConfig, trainable: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration; `trainable` is the number of trained parameters."""
    bucket = max(1 << 16, min(trainable, 500_000_000))
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": config.grad_clip,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": config.precision == "bfloat16", "check_grad_overflow": True},
        # ranks and micro-batches add up in float32, whatever the weights' precision
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {
            "stage": config.zero_stage,
            "overlap_comm": False,
            "contiguous_gradients": True,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
        },
        "optimizer": {
            "type": "AdamW",
            "params": {
                "torch_adam": True,
                "lr": config.learning_rate,
                "betas": [config.beta1, config.beta2],
                "eps": 1e-8,
                "weight_decay": config.weight_decay,
            },
        },
        "steps_per_print": None,
    }


def _initialize(scorer: PolicyScorer, config: TrainingConfig) -> Any:
    import deepspeed

    trainable = [parameter for _, parameter in scorer.trained()]
    size = sum(parameter.numel() for parameter in trainable)
    if config.zero_stage == 3:
        deepspeed.zero.register_external_parameter(scorer, scorer.head)
    engine, *_ = deepspeed.initialize(
        model=scorer, model_parameters=trainable, config=deepspeed_config(config, size), dist_init_required=False
    )
    log.info("engine: ZeRO-%d, %d ranks, %d trained parameters", config.zero_stage, distributed.world_size(), size)
    return engine
