"""`ratchet release` on a real registry: what it shows, what it moves, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from data_contracts.errors import UserError
from data_contracts.gates import Gate, Verdict
from data_contracts.store import write_json
from flows.commands.release import app
from models.registry import ChampionMoved, Registry
from models.release import Bundle, ReleaseRefused


def offer(folder: Path, mark: str, lr: float, compared_with: int | None, *gates: Gate) -> Bundle:
    for part in ("base", mark):
        (folder / part).mkdir(exist_ok=True)
        (folder / part / "model.safetensors").write_text(part)
    return Bundle(
        run_id=f"run-{mark}", base_path=folder / "base", base_digest="base-digest", policy_path=folder / mark,
        policy_version=mark, policy_digest=f"digest-{mark}", recipe={"training": {"lr": lr, "seed": 0}},
        evidence=gates, compared_with=compared_with,
    )  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Releases 1 (champion, no evidence), 2 and 3 (better than 1), 4 (no evidence)."""
    home = tmp_path_factory.mktemp("home")
    (home / "run").mkdir()
    write_json(home / "run" / "recipe.json", {"release": {"name": "agent"}})
    registry = Registry(f"sqlite:///{home}/mlflow.db", home / "mlartifacts", "agent")
    gain = Gate(name="release.gain", verdict=Verdict.PASS, reason="better", evidence={"gain": 0.2})
    more = gain.model_copy(update={"evidence": {"gain": 0.25}})
    for bundle in (
        offer(home, "p0", 0.1, None), offer(home, "p1", 0.1, 1, gain), offer(home, "p2", 0.2, 1, more),
        offer(home, "p3", 0.2, 1),
    ):  # fmt: skip
        registry.publish(bundle)
    registry.promote(1, who="ann", why="first")
    return home


def ratchet(home: Path, *words: str) -> Result:
    result = CliRunner().invoke(app, [*words, "--home", str(home)], env={"COLUMNS": "200"})
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def test_releases_are_shown_compared_and_moved_with_a_history(home: Path) -> None:
    differs = json.loads(ratchet(home, "diff", "2", "3", "--json").output)
    assert differs["recipe"] == {"training.lr": [0.1, 0.2]}
    assert differs["evidence"] == {"release.gain.gain": [0.2, 0.25]}
    assert differs["components"]["policy.digest"] == ["digest-p1", "digest-p2"] and "reference" not in differs
    assert "training.lr" in ratchet(home, "diff", "2", "3").output

    with pytest.raises(UserError, match="release 4 was published without evidence"):
        ratchet(home, "promote", "4")
    with pytest.raises(UserError, match="--force needs --why"):
        ratchet(home, "promote", "4", "--force")
    assert "release 2 is the champion" in ratchet(home, "promote", "2", "--who", "bob").output
    with pytest.raises(ChampionMoved, match="release 3 was compared with release 1"):
        ratchet(home, "promote", "3")
    ratchet(home, "promote", "4", "--force", "--why", "hotfix", "--who", "bob")
    ratchet(home, "rollback", "--to", "1", "--why", "worse", "--who", "eve")
    with pytest.raises(UserError, match=r"release 4 was published without evidence"):
        ratchet(home, "promote", "4")

    shown = json.loads(ratchet(home, "show", "4", "--json").output)
    assert [(move["kind"], move["who"], move["why"], move["forced"]) for move in shown["history"]] == [
        ("promote", "bob", "hotfix", True),
        ("rollback", "eve", "worse", False),
    ]
    assert "hotfix" in ratchet(home, "show", "4").output
    second = json.loads(ratchet(home, "show", "2", "--json").output)["history"][0]
    assert second["evidence"][0]["name"] == "release.gain" and second["evidence"][0]["evidence"] == {"gain": 0.2}

    ratchet(home, "quarantine", "3", "--why", "leaks", "--who", "eve")
    with pytest.raises(ReleaseRefused, match="release 3 is in quarantine: leaks"):
        ratchet(home, "promote", "3")
    rows = json.loads(ratchet(home, "list", "--json").output)
    assert [row["standing"] for row in rows] == [["champion"], [], ["in quarantine: leaks"], []]
    assert "champion" in ratchet(home, "list").output
    ratchet(home, "quarantine", "3", "--lift", "--why", "false alarm")

    planned = ratchet(home, "collect", "--keep-last", "1", "--keep-days", "0", "--dry-run").output
    assert planned.startswith("releases would be deleted: 2, 3;")
    ratchet(home, "collect", "--keep-last", "1", "--keep-days", "0")
    assert [row["version"] for row in json.loads(ratchet(home, "list", "--json").output)] == [1, 4]


def test_an_agent_must_be_named_where_there_are_none_or_several(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has 0 agents: give `ratchet run RECIPE` first"):
        ratchet(tmp_path, "list")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "recipe.json", {"release": {"name": name}})
    with pytest.raises(UserError, match="has 2 agents: --name is one of a, b"):
        ratchet(tmp_path, "list")
