"""Run PEFT's LoRA layers through `ratchet_kernels.lora_linear`: the same numbers from fewer passes over memory."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING

from ratchet_kernels import lora_linear
from torch import Tensor, nn

if TYPE_CHECKING:
    from peft import PeftModel

_ADAPTER = "default"


def fuse_lora(policy: PeftModel) -> int:
    """Give every plain LoRA linear layer of the policy the fused forward; return how many got it.

    Layers with dropout, a LoRA variant (DoRA and the like), a bias on the adapter or another base than `nn.Linear` keep
    PEFT's own forward. Not for ZeRO-3, which gathers weights by hooks on the submodules that this goes around.
    """
    from peft.tuners.lora import Linear

    layers = [module for module in policy.modules() if isinstance(module, Linear) and _is_plain(module)]
    for layer in layers:
        layer.forward = MethodType(_forward, layer)  # type: ignore[method-assign]
    return len(layers)


def _forward(layer: nn.Module, x: Tensor) -> Tensor:
    base, a, b = layer.base_layer, layer.lora_A[_ADAPTER], layer.lora_B[_ADAPTER]  # type: ignore[index]
    return lora_linear(x, base.weight, base.bias, a.weight, b.weight, layer.scaling[_ADAPTER])  # type: ignore[index, arg-type, union-attr]


def _is_plain(layer: nn.Module) -> bool:
    return (
        type(layer.base_layer) is nn.Linear
        and list(layer.lora_A) == [_ADAPTER]  # type: ignore[arg-type]
        and isinstance(layer.lora_dropout[_ADAPTER], nn.Identity)  # type: ignore[index]
        and not layer.lora_variant
        and layer.lora_B[_ADAPTER].bias is None  # type: ignore[index, union-attr]
    )
