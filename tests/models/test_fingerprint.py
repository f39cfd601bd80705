from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from data_contracts.errors import UserError
from models.fingerprint import digest_folder, digest_model


def _adapter(folder: Path, value: float = 1.0, **config: object) -> Path:
    folder.mkdir(parents=True)
    save_file({"a": torch.full((3,), value)}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"r": 4, "target_modules": ["q", "v"], **config}))
    return folder


def test_digest_ignores_the_folder_the_base_path_and_set_order(tmp_path: Path) -> None:
    one = _adapter(tmp_path / "one", base_model_name_or_path="/a")
    two = _adapter(tmp_path / "deep" / "two", base_model_name_or_path="/b", target_modules=["v", "q"])
    (two / "digest.txt").write_text("not part of it")
    assert digest_folder(one) == digest_folder(two)
    assert len(digest_folder(one)) == 64


@pytest.mark.parametrize("change", [{"value": 1.0000001}, {"r": 8}, {"lora_alpha": 2}])
def test_digest_moves_with_weights_and_configuration(tmp_path: Path, change: dict[str, float]) -> None:
    assert digest_folder(_adapter(tmp_path / "one")) != digest_folder(_adapter(tmp_path / "two", **change))


def test_digest_moves_when_a_file_is_renamed(tmp_path: Path) -> None:
    one, two = _adapter(tmp_path / "one"), _adapter(tmp_path / "two")
    (two / "adapter_model.safetensors").rename(two / "other.safetensors")
    assert digest_folder(one) != digest_folder(two)


def test_digest_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no \*.safetensors"):
        digest_folder(tmp_path)


def test_model_digest_covers_the_tokenizer(tmp_path: Path) -> None:
    one, two = _adapter(tmp_path / "one"), _adapter(tmp_path / "two")
    for folder, vocabulary in ((one, "a"), (two, "b")):
        (folder / "config.json").write_text("{}")
        (folder / "tokenizer.json").write_text(vocabulary)
    assert digest_folder(one) == digest_folder(two)
    assert digest_model(one) != digest_model(two)
