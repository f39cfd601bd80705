"""The module that DeepSpeed wraps: base + adapter, or a whole model, that predicts the sampled tokens.

policy folder -> PolicyScorer(token ids) -> TokenLogprobs; its trained weights -> policy folder
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet_kernels import TokenLogprobs, token_logprobs
from torch import Tensor, nn

from data_contracts.errors import UserError
from models.policy import Base, is_whole, load_base, trainable_policy, without_adapter, write_adapter, write_whole
from tasks.training.attention import use_packed_attention
from tasks.training.config import TrainingConfig
from tasks.training.fused import fuse_lora
from tasks.training.routing import Replay

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PolicyScorer(nn.Module):
    """The policy as DeepSpeed sees it: token ids in, log-probabilities of the sampled tokens out."""

    def __init__(self, base: Base, policy_dir: Path, config: TrainingConfig) -> None:
        super().__init__()
        self.temperature = config.temperature
        self._source = policy_dir
        if config.weights == "full":
            self.policy: nn.Module = _whole(policy_dir)
        else:
            self.policy = _with_adapter(base, policy_dir)
            if config.zero_stage < 3:
                fuse_lora(self.policy)  # type: ignore[arg-type]
        if config.packed:
            use_packed_attention(self.model)
        if config.gradient_checkpointing:
            _checkpoint_layers(self.model, reentrant=config.zero_stage == 3)
        self._replay = Replay(self.model)

    @property
    def model(self) -> PreTrainedModel:
        """The causal language model, whose layers carry the adapter where there is one."""
        return self.policy.get_base_model() if hasattr(self.policy, "peft_config") else self.policy  # type: ignore[operator, return-value]

    @property
    def head(self) -> Tensor:
        """The weight [V,H] that turns hidden states into logits."""
        return self.model.get_output_embeddings().weight

    def forward(
        self,
        token_ids: Tensor,
        position_ids: Tensor | None,
        bounds: Tensor | None,
        positions: Tensor,
        targets: Tensor,
        routed_experts: Tensor | None = None,
    ) -> TokenLogprobs:
        """token_ids and position_ids [B,T], bounds [B+1], positions [N] in the flattened B*T, targets [N] -> [N].

        routed_experts [B*T,layers,per_token]: the experts to go through, -1 where the router decides.
        """
        self._replay.use(routed_experts)
        packed = {} if bounds is None else {"position_ids": position_ids, "cu_seq_lens_q": bounds}
        hidden = self.model.get_decoder()(input_ids=token_ids, use_cache=False, **packed).last_hidden_state
        chosen = hidden.reshape(-1, hidden.shape[-1])[positions]
        return token_logprobs(chosen, self.head, targets, temperature=self.temperature)

    def as_base(self) -> AbstractContextManager[None]:
        """Within the context the adapter is switched off. Not for whole weights, which have none."""
        return without_adapter(self.policy)

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters in training, by their names in the policy."""
        return ((name, value) for name, value in self.policy.named_parameters() if value.requires_grad)

    def write(self, state: dict[str, Tensor], out: Path) -> None:
        """Write the trained weights (`trained`, whole, on the CPU) as a policy folder."""
        if not hasattr(self.policy, "peft_config"):
            write_whole(self.model, state, self._source, out)
            return
        from peft import get_peft_model_state_dict

        adapter = get_peft_model_state_dict(self.policy, state, save_embedding_layers=False)
        write_adapter(adapter, self.policy.peft_config["default"], out)  # type: ignore[index, arg-type]


def _with_adapter(base: Base, policy_dir: Path) -> nn.Module:
    if is_whole(policy_dir):
        raise UserError(f"{policy_dir} is a whole model: set training.weights = 'full' to train it.")
    return trainable_policy(base, policy_dir)


def _whole(policy_dir: Path) -> nn.Module:
    if not is_whole(policy_dir):
        raise UserError(f"{policy_dir} is an adapter: set training.weights = 'adapter', or start a run anew.")
    return load_base(policy_dir).model.requires_grad_(True)


def _checkpoint_layers(model: PreTrainedModel, *, reentrant: bool) -> None:
    """Have each layer keep its input alone. Only the layers are told that they train: dropout stays off.

    ZeRO-3 gives a layer's weights back between forward and backward, which torch's other form takes for a change.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.training = True
