"""A policy version is the base plus one LoRA adapter folder, under a name that is never reused.

base folder -> Base; Base + LoraSpec -> policy-00000 (equals the base); Base + adapter -> merged model to sample from
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_contracts.errors import UserError
from models.fingerprint import DIGEST_FILE, canonical_adapter_config, digest_folder, digest_model

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel
    from torch import Tensor, nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ALL_LINEAR = "all-linear"
_REMEDY = "give the folder of a saved causal LM with its tokenizer."


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """Shape of an adapter: rank, scale `alpha / r`, and the linear layers it sits on (names, or all but the head)."""

    r: int = 16
    alpha: int = 32
    targets: str | tuple[str, ...] = ALL_LINEAR


@dataclass(frozen=True, slots=True)
class Base:
    """The frozen base model: float32, eval, no gradients."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    path: str
    digest: str

    @property
    def window(self) -> int:
        """Most tokens of one sequence: the positions that the model was made for."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or sys.maxsize


def load_base(path: Path | str) -> Base:
    """Load a Hugging Face causal language model folder in float32. A folder that is none is a UserError naming it."""
    folder = Path(path)
    if fault := model_fault(folder):
        raise UserError(f"{folder} is no model folder ({fault}): {_REMEDY}")
    digest = digest_model(folder)
    model, tokenizer = _load_parts(folder)
    return Base(model.eval().requires_grad_(False), tokenizer, str(folder), digest)


def model_fault(folder: Path) -> str:
    """Why a folder can not be a saved model, as far as that shows without loading it; empty where nothing does."""
    config = folder / "config.json"
    if not config.is_file():
        return "it has no config.json"
    try:
        found = json.loads(config.read_bytes())
    except ValueError:
        return "its config.json is not JSON"
    if not isinstance(found, dict) or not isinstance(found.get("model_type"), str):
        return "its config.json names no model_type"
    return "" if any(folder.glob("*.safetensors")) else "it has no *.safetensors"


def is_whole(folder: Path) -> bool:
    """Whether a policy version's folder holds a whole model, not an adapter; one with neither is a UserError."""
    if (folder / "adapter_config.json").is_file():
        return False
    if fault := model_fault(folder):
        raise UserError(f"{folder} is no adapter and no model ({fault}): give a saved policy version.")
    return True


def _load_parts(folder: Path) -> tuple[Any, Any]:
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, StrictDataclassError) as error:
        why = " ".join(str(error).split())[:200]
        raise UserError(f"{folder} does not load as a causal LM with its tokenizer ({why}): {_REMEDY}") from error
    model, found = loaded
    # transformers draws missing weights at random, and makes an empty tokenizer where there is no file of one
    if found["missing_keys"]:
        raise UserError(f"{folder} lacks weights ({min(found['missing_keys'])}): {_REMEDY}")
    if not tokenizer("a")["input_ids"]:
        raise UserError(f"{folder} has no tokenizer: {_REMEDY}")
    return model, tokenizer


def init_adapter(base: Base, spec: LoraSpec, out: Path, seed: int) -> Path:
    """Write a fresh adapter to `out`: A drawn from `seed`, B zero, so that it equals the base."""
    import torch
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.r,
        lora_alpha=spec.alpha,
        lora_dropout=0.0,
        target_modules=spec.targets if isinstance(spec.targets, str) else list(spec.targets),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = get_peft_model(_share(base.model), config)
        except ValueError as error:
            raise UserError(f"no LoRA layer fits {base.path} with targets {spec.targets!r}: {error}") from error
    return write_adapter(adapter_state(model), model.peft_config["default"], out)


def merged_model(base: Base, adapter: Path | None) -> PreTrainedModel:
    """Return a fresh copy of the base with the adapter merged into its weights, or of a whole policy's model.

    eval, no gradients.
    """
    from peft import PeftModel

    if adapter is not None and is_whole(adapter):
        return load_base(adapter).model
    model = copy.deepcopy(base.model)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    return model.eval().requires_grad_(False)


def trainable_policy(base: Base, adapter: Path) -> PeftModel:
    """Return the base with the adapter beside its weights, which it shares; only the adapter trains (float32)."""
    from peft import PeftModel

    _require_adapter(adapter)
    return PeftModel.from_pretrained(_share(base.model), str(adapter), is_trainable=True)


@contextmanager
def without_adapter(policy: nn.Module) -> Iterator[None]:
    """Within the context, the policy computes what its base does: every LoRA layer's scale is 0.

    Gradients, hooks and `requires_grad` stay as they are. A policy without LoRA layers is a UserError.
    """
    from peft.tuners.lora import LoraLayer

    layers = [module for module in policy.modules() if isinstance(module, LoraLayer)]
    if not layers:
        raise UserError("a policy of full weights does not hold its base: set training.kl_coefficient = 0.")
    scales = [dict(layer.scaling) for layer in layers]
    for layer in layers:
        layer.scaling.update(dict.fromkeys(layer.scaling, 0.0))
    try:
        yield
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scaling.update(scale)


def adapter_state(model: PeftModel) -> dict[str, Tensor]:
    """Return the adapter's tensors by their PEFT names, on the CPU."""
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}


def write_adapter(state: dict[str, Tensor], config: PeftConfig, out: Path) -> Path:
    """Write a PEFT folder (weights, configuration, `digest.txt`) so that `out` is there whole or not at all."""
    from safetensors.torch import save_file

    scratch = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    save_file(state, scratch / "adapter_model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(str(scratch))
    # PEFT writes sets in hash order and the base's absolute path: rewrite so that equal adapters are equal files.
    config_file = scratch / "adapter_config.json"
    config_file.write_text(canonical_adapter_config(config_file) + "\n")
    (scratch / DIGEST_FILE).write_text(digest_folder(scratch) + "\n")
    publish_folder(scratch, out)
    return out


def init_whole(base: Base, out: Path) -> Path:
    """Write the base itself as the first version of a policy of full weights."""
    scratch = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(base.path, scratch)
    (scratch / DIGEST_FILE).write_text(digest_folder(scratch) + "\n")
    publish_folder(scratch, out)
    return out


def write_whole(model: PreTrainedModel, state: dict[str, Tensor], source: Path, out: Path) -> Path:
    """Write a model folder: weights by name, the model's configuration, `digest.txt`, all else as in `source`.

    `out` is there whole or not at all.
    """
    scratch = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(source, scratch, ignore=shutil.ignore_patterns("*.safetensors*", "*.bin*", DIGEST_FILE))
    model.save_pretrained(scratch, state_dict=state)
    (scratch / DIGEST_FILE).write_text(digest_folder(scratch) + "\n")
    publish_folder(scratch, out)
    return out


def publish_folder(scratch: Path, out: Path) -> None:
    """Flush a finished folder to disk and rename it to `out`, replacing what a killed attempt left there."""
    for file in scratch.rglob("*"):
        _fsync(file)
    old = out.with_name(f".{out.name}.old")
    if out.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.rename(out, old)
    os.rename(scratch, out)
    shutil.rmtree(old, ignore_errors=True)
    _fsync(out.parent)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _share(model: PreTrainedModel) -> PreTrainedModel:
    """Copy the module tree but not the tensors: layers can be swapped in the copy, the weights exist once."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def _require_adapter(adapter: Path) -> None:
    if not (adapter / "adapter_config.json").is_file():
        raise UserError(f"{adapter} is no adapter folder (it has no adapter_config.json): give a saved policy version.")
