"""A release as MLflow's model: loaded in another process by the alias, it says what the engine says."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from models.fingerprint import digest_folder
from models.policy import LoraSpec, init_adapter, load_base
from models.registry import Registry
from models.registry_reader import ReleaseReader
from models.release import Bundle, ReleaseDamaged
from models.starter import StarterConfig, new_model, save, train_tokenizer
from tasks.release.serving_model import TurnModel, _load_pyfunc

SCRIPT = """
import json, sys
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/agent-release@champion")
asked = json.loads(sys.argv[2])
turns = model.predict(asked, params={"max_tokens": 12})
print(json.dumps({"turns": turns, "inputs": model.metadata.get_input_schema().input_names()}))
"""
ASKED = {
    "messages": [
        {"role": "user", "content": "fix line 3"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "3: return a"},
    ],
    "tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}],
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """An agent whose champion is a random model with a fresh adapter."""
    home = tmp_path_factory.mktemp("served")
    tokenizer = train_tokenizer(["def f(x):\n    return x + 1\n", "fix line 3"] * 20, 400)
    save(
        new_model(StarterConfig(hidden=32, layers=2, mlp=48, heads=2, kv_heads=1), tokenizer), tokenizer, home / "base"
    )
    base = load_base(home / "base")
    adapter = init_adapter(base, LoraSpec(r=4), home / "policy", seed=0)
    registry = Registry(f"sqlite:///{home}/mlflow.db", home / "mlartifacts", "agent")
    bundle = Bundle(
        run_id="r", base_path=home / "base", base_digest=base.digest, policy_path=adapter,
        policy_version="policy-00001", policy_digest=digest_folder(adapter),
    )  # fmt: skip
    registry.promote(registry.publish(bundle), who="test", why="first")
    return registry


def loaded(registry: Registry) -> TurnModel:
    release = registry.champion()
    assert release is not None
    return TurnModel(release)


def test_another_process_loads_the_champion_and_gets_the_same_turn(registry: Registry) -> None:
    from pandas import DataFrame

    uri = f"sqlite:///{registry._journal.path.parents[1]}/mlflow.db"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, uri, json.dumps(ASKED)], capture_output=True, text=True, check=True
    )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["inputs"] == ["messages", "tools"]
    here = loaded(registry).predict(DataFrame([ASKED]), {"max_tokens": 12, "temperature": 0.0})
    assert told["turns"] == here
    champion = registry.champion()
    assert champion is not None
    assert here[0]["policy_digest"] == champion.digests["policy"] and here[0]["policy_version"] == "policy-00001"
    assert here[0]["message"]["role"] == "assistant" and here[0]["finish_reason"] in ("stop", "length")


def test_calls_become_tool_calls_unless_the_turn_was_cut(registry: Registry) -> None:
    model = loaded(registry)
    text = 'first\n<tool_call>\n{"name": "read", "arguments": {"line": 3}}\n</tool_call>'
    message = model._message(text, cut=False)
    assert message["content"] == "first"
    assert message["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"line": 3}'}
    assert model._message(text, cut=True) == {"role": "assistant", "content": text}
    assert model._message("no call", cut=False) == {"role": "assistant", "content": "no call"}


def test_a_damaged_release_does_not_load(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    home = registry._journal.path.parents[1]
    monkeypatch.setattr(mlflow, "get_tracking_uri", lambda: f"sqlite:///{home}/mlflow.db")
    version = registry._reader.find(1)
    folder = ReleaseReader(registry._reader._client, "agent").fetch(str(version.source))
    assert _load_pyfunc(str(folder))._name == "policy-00001"
    config = registry.release(1).policy_path / "adapter_config.json"
    before = config.read_text()
    config.write_text(before + " ")
    with pytest.raises(ReleaseDamaged, match=r"policy of release 1: .*adapter_config\.json was changed"):
        _load_pyfunc(str(folder))
    config.write_text(before)
