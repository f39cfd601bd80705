"""How a batch becomes a new policy version: everything the trainer is told."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from data_contracts.config import Config
from data_contracts.errors import UserError

MismatchMethod = Literal["none", "tis", "icepop", "sequence_mask"]
Objective = Literal["clip", "gspo", "dppo"]


class TrainingConfig(Config):
    """A policy gradient on an adapter or on every weight, in a DeepSpeed engine."""

    learning_rate: float = Field(default=2e-3, gt=0, description="AdamW's step size; about 2e-3 for LoRA")
    warmup_steps: int = Field(default=4, ge=0, description="iterations over which the learning rate rises linearly")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW's decay of the mean gradient")
    beta2: float = Field(default=0.99, ge=0, lt=1, description="AdamW's decay of the squared gradient")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's decoupled weight decay")
    grad_clip: float = Field(default=1.0, gt=0, description="largest norm of a step's gradient")
    lora_r: int = Field(default=16, ge=1, description="rank of the LoRA adapter")
    lora_alpha: int = Field(default=32, ge=1, description="the adapter's output is scaled by alpha / r")
    lora_targets: Literal["all-linear"] | tuple[str, ...] = Field(
        default="all-linear", description="linear layers that carry the adapter, by name; all but the head by default"
    )
    objective: Objective = Field(
        default="clip",
        description="what is maximised: clip (PPO, a ratio a token), gspo (a ratio a segment, by its mean; clips of "
        "about 3e-4), dppo (a bound on each token's change of probability, and a penalty on its squared log-ratio)",
    )
    clip_low: float = Field(
        default=0.2, gt=0, lt=1, description="the ratio is clipped at 1 - clip_low; dppo: largest fall in probability"
    )
    clip_high: float = Field(
        default=0.28, gt=0, description="the ratio is clipped at 1 + clip_high; dppo: largest rise in probability"
    )
    ratio_penalty: float = Field(default=1e-3, ge=0, description="dppo: weight of the squared log-ratio")
    kl_coefficient: float = Field(
        default=0.0, ge=0, description="weight of KL(policy || base) in the loss; 0: the base is not scored at all"
    )
    minibatches: int = Field(default=4, ge=1, description="optimizer steps an epoch; whole rollouts are dealt to them")
    epochs: int = Field(default=1, ge=1, description="passes over a batch")
    micro_batch_tokens: int = Field(
        default=2048, ge=1, description="tokens computed at once, a rank (padding included)"
    )
    mismatch: MismatchMethod = Field(
        default="tis", description="correction of the difference between the trainer's and the engine's probabilities"
    )
    mismatch_low: float = Field(default=0.0, ge=0, description="smallest importance weight (tis: floor, else: bound)")
    mismatch_high: float = Field(default=2.0, gt=0, description="largest importance weight (tis: cap, else: bound)")
    temperature: float = Field(default=1.0, gt=0, description="of the rollouts: the trainer scores under the same")
    max_skipped_in_a_row: int = Field(
        default=3, ge=1, description="non-finite optimizer steps in a row that stop the run; fewer are skipped, counted"
    )
    zero_stage: Literal[1, 2, 3] = Field(default=2, description="what DeepSpeed ZeRO shards over the processes")
    processes: int = Field(default=1, ge=1, description="ranks on each machine; more than one are run by torchrun")
    threads: int = Field(default=0, ge=0, description="CPU threads a rank may use; 0 leaves the choice to torch")
    seed: int = Field(default=0, ge=0, description="decides the adapter's start and the order of minibatches")
    weights: Literal["adapter", "full"] = Field(
        default="adapter", description="what trains: a LoRA adapter beside the frozen base, or every weight of it"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="of weights and activations; the optimizer always keeps float32 copies"
    )
    gradient_checkpointing: bool = Field(
        default=False, description="keep only each layer's input and compute the rest again in the backward pass"
    )
    packed: bool = Field(
        default=True, description="lay trajectories end to end without padding; false for models whose layers can not"
    )
    replay_routing: bool = Field(
        default=True, description="send tokens to the experts they were sampled by, where the rollouts recorded them"
    )
    checkpoint_steps: int = Field(
        default=0, ge=0, description="optimizer steps between checkpoints inside an iteration; 0: only at its end"
    )
    hostfile: str | None = Field(
        default=None, description="machines in DeepSpeed's form, this one first; its launcher then starts the ranks"
    )
    nodes: int = Field(default=1, ge=1, description="how many machines of the hostfile take part")
    master_port: int = Field(
        default=29500, ge=1, lt=65536, description="where the ranks of the hostfile's machines meet"
    )

    batch_invariant: bool = Field(
        default=False,
        description="compute each segment alone: its log-probabilities are bit-equal whatever the batch; slower",
    )

    @model_validator(mode="after")
    def _machines_are_named(self) -> Self:
        if self.nodes > 1 and self.hostfile is None:
            raise ValueError(f"nodes = {self.nodes} needs a list of machines: write for example hostfile = 'hostfile'")
        return self

    @model_validator(mode="after")
    def _base_is_beside(self) -> Self:
        if self.kl_coefficient and self.weights == "full":
            raise ValueError(
                "kl_coefficient needs the base beside the policy, which whole weights replace: "
                "write weights = 'adapter', or kl_coefficient = 0"
            )
        return self

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if self.mismatch_low >= self.mismatch_high:
            raise ValueError(
                f"mismatch_low {self.mismatch_low:g} is not below mismatch_high {self.mismatch_high:g}: "
                "write for example mismatch_low = 0.5 and mismatch_high = 2"
            )
        return self

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of iteration `step` (from 0): linear over the warm-up, then constant."""
        return self.learning_rate * min(1.0, (step + 1) / max(1, self.warmup_steps))


def check_sampling(config: TrainingConfig, *, temperature: float, top_p: float) -> None:
    """Refuse rollouts whose log-probabilities the trainer would compute over another distribution (UserError)."""
    if temperature != config.temperature:
        raise UserError(
            f"rollouts were sampled at temperature {temperature:g}, the trainer scores at {config.temperature:g}: "
            f"set training.temperature = {temperature:g}."
        )
    if top_p != 1.0:
        raise UserError(
            f"rollouts were sampled with top_p {top_p:g}, which the trainer can not renormalise over: set top_p = 1."
        )
