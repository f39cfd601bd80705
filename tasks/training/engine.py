"""The DeepSpeed engine around base + adapter: compute, step, save, load.

Packed -> TokenLogprobs -> backward per micro-batch -> one step -> adapter folder + checkpoint

DeepSpeed divides gradients by the number of ranks and counts micro-batches by itself; here the loss is already divided
by the whole step's tokens, so the ranks' division is undone and the caller owns the boundary
(`managed_gradient_accumulation: false`).
"""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from ratchet_kernels import TokenLogprobs, token_logprobs
from torch import Tensor, nn

from data_contracts.errors import UserError
from models.fingerprint import digest_folder
from models.policy import Base, adapter_state, publish_folder, trainable_policy, without_adapter, write_adapter
from tasks.training import distributed
from tasks.training.config import TrainingConfig
from tasks.training.fused import fuse_lora
from tasks.training.packing import Packed

log = logging.getLogger(__name__)

_CHECKPOINT_FILE = "checkpoint.json"
_SHARDS = "deepspeed"


class PolicyScorer(nn.Module):
    """The policy as DeepSpeed sees it: token ids in, log-probabilities of the sampled tokens out."""

    def __init__(self, policy: nn.Module, temperature: float) -> None:
        super().__init__()
        self.policy = policy
        self.temperature = temperature

    def forward(self, token_ids: Tensor, positions: Tensor, targets: Tensor) -> TokenLogprobs:
        """token_ids[B,T], positions[N] in the flattened B*T, targets[N] -> TokenLogprobs [N]."""
        model = self.policy.get_base_model()  # type: ignore[operator]
        hidden = model.get_decoder()(input_ids=token_ids, use_cache=False).last_hidden_state
        chosen = hidden.reshape(-1, hidden.shape[-1])[positions]
        return token_logprobs(chosen, model.get_output_embeddings().weight, targets, temperature=self.temperature)


class TrainingEngine:
    """One policy version in training. Every rank calls every method, in the same order."""

    def __init__(self, base: Base, adapter: Path, config: TrainingConfig) -> None:
        self.config = config
        self.skipped_in_a_row = 0
        policy = trainable_policy(base, adapter)
        self.lora_config = policy.peft_config["default"]
        if config.zero_stage < 3:
            fuse_lora(policy)
        self._scorer = PolicyScorer(policy, config.temperature)
        self._engine = _initialize(self._scorer, config)
        self.device = self._engine.device

    def compute(self, packed: Packed) -> TokenLogprobs:
        """Return log-probabilities [N] of the sampled tokens, with gradient where torch records one."""
        return self._engine(packed.token_ids, packed.positions, packed.targets)

    def as_base(self) -> AbstractContextManager[None]:
        """Within the context, compute what the base alone would, with the adapter switched off."""
        return without_adapter(self._scorer.policy)

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
        """Write the checkpoint `<checkpoint_dir>/<policy name>` and then the adapter folder; return its digest.

        In this order, and each by a rename: whoever sees the policy also finds the optimizer state that belongs to it.
        """
        scratch = out_policy.with_name(f".{out_policy.name}.next")
        state = self._adapter_state()
        if distributed.rank() == 0:
            shutil.rmtree(scratch, ignore_errors=True)
            write_adapter(state, self.lora_config, scratch)
        digest: str = distributed.share(digest_folder(scratch) if distributed.rank() == 0 else None)
        self._save_checkpoint(checkpoint_dir / out_policy.name, digest)
        if distributed.rank() == 0:
            publish_folder(scratch, out_policy)
        return digest

    def load_checkpoint(self, policy_dir: Path, checkpoint_dir: Path) -> None:
        """Restore optimizer state and counters saved together with the policy. Another policy's are a UserError."""
        folder = checkpoint_dir / policy_dir.name
        note = read_checkpoint(folder)
        if note["digest"] != digest_folder(policy_dir):
            raise UserError(f"{folder} belongs to other weights than {policy_dir}: give the checkpoint of that policy.")
        if note["processes"] != distributed.world_size():
            raise UserError(
                f"{folder} was written by {note['processes']} processes: set training.processes to that number."
            )
        loaded, _ = self._engine.load_checkpoint(
            str(folder), tag=_SHARDS, load_module_strict=False, load_lr_scheduler_states=False
        )
        if loaded is None:
            raise UserError(f"{folder} holds no DeepSpeed state: delete it and load the policy without a checkpoint.")
        self.skipped_in_a_row = note["skipped_in_a_row"]

    def close(self) -> None:
        """Drop DeepSpeed's hooks and buffers."""
        self._engine.destroy()

    def _save_checkpoint(self, folder: Path, digest: str) -> None:
        scratch = folder.with_name(f".{folder.name}.next")
        if distributed.rank() == 0:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
        distributed.share(None)
        self._engine.save_checkpoint(str(scratch), tag=_SHARDS, save_latest=False, exclude_frozen_parameters=True)
        distributed.gather(None)
        if distributed.rank() == 0:
            note = {
                "digest": digest,
                "processes": distributed.world_size(),
                "skipped_in_a_row": self.skipped_in_a_row,
            }
            (scratch / _CHECKPOINT_FILE).write_text(json.dumps(note))
            publish_folder(scratch, folder)

    def _adapter_state(self) -> dict[str, Tensor]:
        with self._gathered():
            return adapter_state(self._scorer.policy)  # type: ignore[arg-type]

    def _gathered(self) -> AbstractContextManager[Any]:
        if self.config.zero_stage < 3:
            return nullcontext()
        import deepspeed

        return deepspeed.zero.GatheredParameters([p for p in self._scorer.parameters() if p.requires_grad])


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """Return the note beside a checkpoint's shards; a folder without one is a UserError."""
    note = folder / _CHECKPOINT_FILE
    if not note.is_file():
        raise UserError(f"{folder} is no checkpoint (it has no {_CHECKPOINT_FILE}): train from the policy without one.")
    return json.loads(note.read_text())


def deepspeed_config(config: TrainingConfig, trainable: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration; `trainable` is the number of trained parameters."""
    bucket = max(1 << 16, min(trainable, 500_000_000))
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": config.grad_clip,
        "zero_force_ds_cpu_optimizer": False,
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

    trainable = [parameter for parameter in scorer.parameters() if parameter.requires_grad]
    size = sum(parameter.numel() for parameter in trainable)
    if config.zero_stage == 3:
        head = scorer.policy.get_base_model().get_output_embeddings()  # type: ignore[operator]
        deepspeed.zero.register_external_parameter(scorer, head.weight)
    engine, *_ = deepspeed.initialize(
        model=scorer, model_parameters=trainable, config=deepspeed_config(config, size), dist_init_required=False
    )
    log.info("engine: ZeRO-%d, %d ranks, %d trained parameters", config.zero_stage, distributed.world_size(), size)
    return engine
