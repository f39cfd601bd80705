"""The starter model's build, small: the same seed gives the same weights, and they load as any model folder does."""

from pathlib import Path

from flows.starter import StarterRecipe, build_starter
from models.chat import Chat
from models.fingerprint import digest_model
from models.policy import load_base
from models.starter import StarterConfig

RECIPE = StarterRecipe(
    model=StarterConfig(vocabulary=400, hidden=32, layers=1, mlp=48, heads=2, kv_heads=1, batch_tokens=1024),
    skilled={"short": 12, "medium": 4},
    careless={"short": 4},
)


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    for name in ("a", "b"):
        build_starter(tmp_path / name, RECIPE, lambda *step: heard.append(step))
    assert digest_model(tmp_path / "a") == digest_model(tmp_path / "b")
    assert {stage.split(" (")[0] for stage, _, _ in heard} == {
        "skilled demonstrations", "careless demonstrations", "skilled stage", "careless stage",
    }  # fmt: skip
    assert all(done <= total for _, done, total in heard)


def test_the_folder_loads_and_speaks_the_chat_form(tmp_path: Path) -> None:
    build_starter(tmp_path / "starter", RECIPE, lambda *step: None)
    base = load_base(tmp_path / "starter")
    chat = Chat(base.tokenizer)
    assert len(chat.completion('<tool_call>\n{"name": "test", "arguments": {}}\n</tool_call>')) == 2
    assert base.model.config.vocab_size == len(base.tokenizer)
    weights = tmp_path / "starter" / "model.safetensors"
    assert weights.stat().st_size < 2 * sum(p.numel() for p in base.model.parameters()) + 20_000
