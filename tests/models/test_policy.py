from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from data_contracts.errors import UserError
from data_contracts.records import policy_name
from models.fingerprint import DIGEST_FILE, digest_folder, probe_logprobs
from models.policy import (
    Base,
    LoraSpec,
    adapter_state,
    init_adapter,
    is_whole,
    load_base,
    merged_model,
    trainable_policy,
    write_adapter,
)

TOKENS = [5, 17, 3, 9, 40, 2, 8, 8, 21, 60]


def _save_tiny_model(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=128, tie_word_embeddings=True,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w1", pad_token="w0").save_pretrained(folder)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = tmp_path_factory.mktemp("base")
    _save_tiny_model(folder)
    return load_base(folder)


def test_base_is_frozen_float32(base: Base) -> None:
    assert {p.dtype for p in base.model.parameters()} == {torch.float32}
    assert not any(p.requires_grad for p in base.model.parameters())
    assert not base.model.training
    assert len(base.digest) == 64


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: [file.unlink() for file in folder.glob(name)]  # type: ignore[func-returns-value]


def _config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def _cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def _lacking(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    del state["model.norm.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_without("config.json"), "is no model folder (it has no config.json)"),
        (_without("*.safetensors"), "is no model folder (it has no *.safetensors)"),
        (lambda folder: (folder / "config.json").write_text("{"), "is no model folder (its config.json is not JSON)"),
        (lambda folder: (folder / "config.json").write_text("[]"), "(its config.json names no model_type)"),
        (_config(model_type="nonesuch"), "does not load as a causal LM with its tokenizer (The checkpoint"),
        (_config(model_type="vit"), "does not load as a causal LM with its tokenizer (Unrecognized configuration"),
        (_config(num_hidden_layers=3), "does not load as a causal LM with its tokenizer (Class validation"),
        (_config(hidden_size=64), "does not load as a causal LM with its tokenizer (You set"),
        (_cut, "does not load as a causal LM with its tokenizer (Error while deserializing"),
        (_lacking, "lacks weights (model.norm.weight)"),
        (_without("tokenizer*"), "has no tokenizer"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "does not load as a causal LM"),
    ],
)
def test_a_folder_that_is_no_model_is_named_with_its_fault(
    tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    _save_tiny_model(tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError) as error:
        load_base(tmp_path)
    message = str(error.value)
    assert message.startswith(f"{tmp_path} ")
    assert said in message
    assert message.endswith(": give the folder of a saved causal LM with its tokenizer.")
    assert "\n" not in message


def test_what_is_no_folder_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}")
    for path in (tmp_path / "file", tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"is no model folder \(it has no config\.json\)"):
            load_base(path)


def test_first_policy_equals_the_base_exactly(base: Base, tmp_path: Path) -> None:
    adapter = init_adapter(base, LoraSpec(r=4, alpha=8), tmp_path / policy_name(0), seed=3)
    expected = probe_logprobs(base.model, TOKENS)
    assert probe_logprobs(merged_model(base, adapter), TOKENS) == expected
    assert probe_logprobs(trainable_policy(base, adapter), TOKENS) == expected
    assert probe_logprobs(merged_model(base, None), TOKENS) == expected


def test_adapter_is_a_function_of_the_seed(base: Base, tmp_path: Path) -> None:
    one, same, other = (init_adapter(base, LoraSpec(r=4), tmp_path / n, s) for n, s in [("a", 3), ("b", 3), ("c", 4)])
    assert digest_folder(one) == digest_folder(same) == (one / DIGEST_FILE).read_text().strip()
    assert digest_folder(one) != digest_folder(other)
    assert (one / "adapter_config.json").read_bytes() == (same / "adapter_config.json").read_bytes()


def test_merged_model_computes_what_the_adapter_computes(base: Base, tmp_path: Path) -> None:
    adapter = init_adapter(base, LoraSpec(r=4, alpha=8), tmp_path / "start", seed=0)
    policy = trainable_policy(base, adapter)
    torch.manual_seed(1)
    moved = {name: tensor + 0.2 * torch.randn_like(tensor) for name, tensor in adapter_state(policy).items()}
    write_adapter(moved, policy.peft_config["default"], tmp_path / "moved")
    before = probe_logprobs(base.model, TOKENS)
    beside = probe_logprobs(trainable_policy(base, tmp_path / "moved"), TOKENS)
    merged = probe_logprobs(merged_model(base, tmp_path / "moved"), TOKENS)
    assert merged == pytest.approx(beside, abs=1e-5)
    assert max(abs(a - b) for a, b in zip(merged, before, strict=True)) > 1e-2
    assert probe_logprobs(base.model, TOKENS) == before, "the base was changed by a merge"


def test_probe_is_the_log_softmax_of_the_next_token(base: Base) -> None:
    with torch.no_grad():
        logits = base.model(torch.tensor([TOKENS])).logits[0].double()
    expected = [float(logits[i, t] - logits[i].logsumexp(0)) for i, t in enumerate(TOKENS[1:])]
    assert probe_logprobs(base.model, TOKENS) == pytest.approx(expected, abs=1e-12)
    assert probe_logprobs(base.model, TOKENS[:1]) == []


def test_wrong_targets_and_missing_adapters_are_named(base: Base, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no_such_layer"):
        init_adapter(base, LoraSpec(targets=("no_such_layer",)), tmp_path / "x", seed=0)
    with pytest.raises(UserError, match="no adapter and no model"):
        merged_model(base, tmp_path / "nothing")


def test_a_policy_versions_folder_holds_an_adapter_or_a_whole_model(base: Base, tmp_path: Path) -> None:
    assert not is_whole(init_adapter(base, LoraSpec(r=4), tmp_path / "adapter", seed=0))
    assert is_whole(Path(base.path))
    with pytest.raises(UserError, match=r"no adapter and no model \(it has no config.json\): give a saved policy"):
        is_whole(tmp_path)


def test_a_rewritten_adapter_replaces_the_old_one(base: Base, tmp_path: Path) -> None:
    out = tmp_path / "policy"
    first = digest_folder(init_adapter(base, LoraSpec(r=4), out, seed=0))
    second = digest_folder(init_adapter(base, LoraSpec(r=4), out, seed=1))
    assert first != second
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]
