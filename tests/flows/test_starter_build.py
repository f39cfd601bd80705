"""The starter model's build, with few demonstrations: one seed, one model; it loads as any model folder does."""

from pathlib import Path

import pytest

from flows.starter import BuildConfig, build_starter
from models.chat import Chat
from models.fingerprint import digest_model
from models.policy import load_base

FEW = BuildConfig(skilled={"short": 12, "medium": 2}, careless={"short": 4}, evaluation={"short": 2})


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_starter(tmp_path_factory.mktemp("a") / "starter", 0, FEW)


def test_one_seed_gives_one_model(starter: Path, tmp_path: Path) -> None:
    assert digest_model(build_starter(tmp_path / "again", 0, FEW)) == digest_model(starter)
    assert digest_model(build_starter(tmp_path / "other", 1, FEW)) != digest_model(starter)


def test_the_folder_loads_and_speaks_the_chat_form(starter: Path) -> None:
    base = load_base(starter)
    chat = Chat(base.tokenizer)
    assert len(chat.completion('<tool_call>\n{"name": "test", "arguments": {}}\n</tool_call>')) == 2
    assert base.model.config.vocab_size == len(base.tokenizer)


def test_the_card_tells_the_command_and_what_the_model_solves(starter: Path) -> None:
    card = (starter / "README.md").read_text()
    assert "ratchet starter build --seed 0" in card
    assert "| short | greedy | 2 | 0.0% (" in card and "| short | temperature 1 | 2 | 0.0% (" in card


def test_the_committed_starter_is_small_and_loads() -> None:
    folder = Path(__file__).parents[2] / "models" / "starter"
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 4 * 2**20
    assert load_base(folder).model.config.model_type == "qwen3"
