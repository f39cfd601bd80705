"""The `ratchet` command: one sentence and exit code 2 for what the user can mend."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from data_contracts.problems import write_pack
from data_contracts.records import Limits
from tasks.curriculum.generator import generate

ROOT = Path(__file__).parents[2]


def ratchet(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def mistake(*arguments: str | Path) -> str:
    """The sentence on standard error of a command that has to end with exit code 2."""
    done = ratchet(*arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_help_teaches_and_is_quick() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = ratchet("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    for word in ("run", "up", "serve", "status", "report", "show", "problems", "starter", "quickstart.toml"):
        assert word in done.stdout
    # processor time, since the wall clock is everybody's: no torch, no Prefect
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 1.5


def test_a_missing_recipe(tmp_path: Path) -> None:
    message = f"ratchet: {tmp_path}/no.toml does not exist: give the path of a recipe (a TOML file)."
    assert mistake("run", tmp_path / "no.toml") == message


def test_an_unknown_key_and_a_wrong_type(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text("[rollout]\ncapcity = 3\n")
    assert mistake("run", recipe) == f"ratchet: {recipe}:2: unknown key rollout.capcity: write rollout.capacity."
    recipe.write_text('[rollout]\ncapacity = "many"\n')
    assert mistake("run", recipe) == (
        f'ratchet: {recipe}:2: rollout.capacity = "many": input should be a valid integer (sessions in flight, '
        "and slots of the in-process engine); write for example capacity = 128."
    )


def test_a_base_that_is_no_model(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(f'[policy]\nbase = "{tmp_path}"\n')
    said = "ratchet: {}: policy.base = '{}' is no model folder ({}): give the folder of a saved causal language model."
    message = mistake("run", recipe, "--home", tmp_path / "runs")
    assert message == said.format(f"{recipe}:2", tmp_path, "it has no config.json")
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    message = mistake("run", recipe, "--home", tmp_path / "runs")
    assert message == said.format(f"{recipe}:2", tmp_path, "it has no *.safetensors")
    message = mistake("run", recipe, "--home", tmp_path / "runs", "--set", "policy.base=nowhere")
    assert message == said.format("--set policy.base=nowhere", "nowhere", "it has no config.json")
    assert not (tmp_path / "runs").exists()


def test_a_pack_that_is_not_there(tmp_path: Path) -> None:
    recipe, empty = tmp_path / "r.toml", tmp_path / "empty"
    empty.mkdir()
    remedy = "does not exist: give a folder with problems.jsonl, one problem a line, or such a file."
    nowhere = tmp_path / "nowhere"
    for key, given, file in (("pack", nowhere, nowhere), ("heldout_pack", empty, empty / "problems.jsonl")):
        recipe.write_text(f'seed = 1\n[curriculum]\n{key} = "{given}"\n')
        message = mistake("run", recipe, "--home", tmp_path / "runs")
        assert message == f"ratchet: {recipe}:3: curriculum.{key} = '{given}': {file} {remedy}"
        assert mistake("problems", "check", given) == f"ratchet: {file} {remedy}"
    assert not (tmp_path / "runs").exists()


def test_two_temperatures(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text("[rollout]\ntemperature = 0.6\n")
    assert mistake("run", recipe, "--home", tmp_path / "runs") == (
        f"ratchet: {recipe}:2: rollouts were sampled at temperature 0.6, the trainer scores at 1: "
        "set training.temperature = 0.6."
    )
    assert not (tmp_path / "runs").exists()


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    assert "there is none yet" in mistake("report", "mine-123", "--home", tmp_path)


def test_a_session_of_no_run(tmp_path: Path) -> None:
    message = mistake("show", "double/1", "--home", tmp_path)
    assert (
        message == f"ratchet: {tmp_path} holds no run: give `ratchet run RECIPE` first, or the right folder by --home."
    )


def test_status_of_an_empty_home(tmp_path: Path) -> None:
    done = ratchet("status", "--json", "--home", tmp_path)
    found = json.loads(done.stdout)
    assert (found["champions"], found["runs"], found["services"]) == ({}, [], {})


def test_problems_are_made_and_pass_the_check(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    assert ratchet("problems", "make", pack, "--seed", "4", "--n", "2").returncode == 0
    done = ratchet("problems", "check", pack)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 of 6 problems admitted: 2 short, 2 medium, 2 long" in done.stdout
    assert mistake("problems", "make", pack, "--split", "test") == "ratchet: --split test: write train or heldout."


def test_the_check_names_each_bad_problem_and_admits_the_rest(tmp_path: Path) -> None:
    good, wrong, endless = generate(6, "train", "short", 3)
    wrong = wrong.model_copy(update={"id": "wrong", "solution": dict(wrong.files)})
    loop = {name: "while True:\n    pass\n" for name in endless.files}
    endless = endless.model_copy(update={"id": "endless", "solution": loop, "limits": Limits(seconds=0.5)})
    file = write_pack(tmp_path, [good, wrong, endless])
    file.write_text(file.read_text() + '{"id": "torn"\n')
    done = ratchet("problems", "check", tmp_path)
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert "1 of 4 problems admitted" in text
    assert "wrong" in text
    assert "the reference solution fails" in text
    assert "ended by timeout" in text
    assert f"rejectedfrom{tmp_path}/problems.jsonl" in text.replace(" ", "")  # the table's title wraps
    assert "2 wrong the reference solution fails" in text
    assert "3 endless the reference solution does not finish" in text
    assert "4 - not JSON (Expecting ',' delimiter at column 14): write one object on one line" in text


@pytest.mark.parametrize("command", ["run", "up", "serve", "status", "report", "show"])
def test_every_command_explains_itself(command: str) -> None:
    done = ratchet(command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_serve_tells_what_is_missing_before_it_starts_anything(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('[policy]\nbase = "nowhere"\n')
    assert mistake("serve", recipe, "--home", tmp_path) == (
        "ratchet: policy.base = 'nowhere' is no model folder (it has no config.json): give a saved model."
    )
    recipe.write_text('[rollout.vllm]\nendpoints = ["http://127.0.0.1:1"]\n')
    assert "names servers that run already" in mistake("serve", recipe, "--home", tmp_path)
    recipe.write_text('[rollout.vllm]\nflags = ["--port=1"]\n')
    message = mistake("serve", recipe, "--home", tmp_path)
    assert "--port=1: leave it out, other keys of rollout.vllm decide it" in message
    assert not (tmp_path / "logs").exists()
