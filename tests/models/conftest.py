"""Processes that use one registry, some of which are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def where(home: Path) -> dict[str, str]:
    return {"uri": f"sqlite:///{home}/mlflow.db", "artifacts": str(home / "mlartifacts")}


@pytest.fixture(scope="module")
def run(where: dict[str, str]) -> Iterator[Run]:
    """Run commands at the same time, each in a process of its own; returns how they ended."""
    script = Path(__file__).with_name("registry_zygote.py")
    zygote = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert zygote.stdin is not None and zygote.stdout is not None

    def send(*commands: dict[str, Any]) -> list[dict[str, Any]]:
        zygote.stdin.write(json.dumps([{**where, **command} for command in commands]) + "\n")
        zygote.stdin.flush()
        answer: list[dict[str, Any]] = json.loads(zygote.stdout.readline())
        return answer

    yield send
    zygote.stdin.close()
    assert zygote.wait(timeout=30) == 0
