"""Which weights are these? A digest of the files, and a probe of what the weights compute.

folder of safetensors -> sha256; model + fixed tokens -> log-probabilities

The digest names weights; the probe proves that an engine serves them: two engines that hold the same weights give the
same log-probabilities for the same tokens, whatever their files are called.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_contracts.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DIGEST_FILE = "digest.txt"
_ADAPTER_CONFIG = "adapter_config.json"
_MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_BLOCK = 1 << 20


def digest_folder(path: Path | str) -> str:
    """Return the sha256 (hex) of an adapter's or model's weights: name and bytes of each `*.safetensors`, by name.

    The adapter's configuration is part of it (rank and scale change what the weights compute), in a canonical form
    without the base's path: moving a run to another folder changes no digest. A folder without weights is a UserError.
    """
    folder = Path(path)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise UserError(f"{folder} holds no *.safetensors file: give the folder of a saved adapter or model.")
    sha = hashlib.sha256()
    for file in weights:
        _add(sha, file.name, _file_sha(file))
    config = folder / _ADAPTER_CONFIG
    if config.exists():
        _add(sha, config.name, hashlib.sha256(canonical_adapter_config(config).encode()).digest())
    return sha.hexdigest()


def digest_model(path: Path | str) -> str:
    """Return the sha256 (hex) of a whole model folder: weights, configuration, tokenizer and chat template."""
    folder = Path(path)
    sha = hashlib.sha256()
    _add(sha, "weights", bytes.fromhex(digest_folder(folder)))
    for name in _MODEL_FILES:
        if (folder / name).exists():
            _add(sha, name, _file_sha(folder / name))
    return sha.hexdigest()


def canonical_adapter_config(path: Path) -> str:
    """Return the adapter's configuration as sorted JSON, sets in order, without the base's path."""
    config: dict[str, Any] = json.loads(path.read_text())
    config.pop("base_model_name_or_path", None)
    for key, value in config.items():
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            config[key] = sorted(value)
    return json.dumps(config, sort_keys=True)


def probe_logprobs(
    model: PreTrainedModel, token_ids: Sequence[int], temperatures: Sequence[float] | None = None
) -> list[float]:
    """Return log p(token i+1 | tokens 0..i) in nats at temperatures[i] (1 if not given), for i = 0 .. T-2."""
    import torch

    if len(token_ids) < 2:
        return []
    ids = torch.tensor([list(token_ids)], device=model.device)
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].double()
    if temperatures is not None:
        logits = logits / torch.tensor(temperatures, device=logits.device, dtype=logits.dtype)[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    return logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()


def _file_sha(path: Path) -> bytes:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            sha.update(block)
    return sha.digest()


def _add(sha: hashlib._Hash, name: str, content: bytes) -> None:
    sha.update(len(name).to_bytes(4, "big") + name.encode() + content)
