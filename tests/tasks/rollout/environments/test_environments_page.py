"""The page "Bring your own problems": every block that a reader would paste, in its order, does what the page says."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "tasks" / "rollout" / "environments" / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_each_block_says_what_the_page_says(tmp_path: Path) -> None:
    shim = tmp_path / "bin" / "ratchet"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m flows.cli "$@"\n')
    shim.chmod(0o755)
    paths = {"PATH": f"{shim.parent}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
    blocks = BLOCK.findall(PAGE.read_text())
    assert [kind for kind, _ in blocks] == [*["sh", "text"] * 6, "toml"]
    for (_, command), (_, expected) in zip(blocks[:12:2], blocks[1:12:2], strict=True):
        if "import-verifiers" in command and importlib.util.find_spec("verifiers") is None:
            pytest.skip("from here on the page needs the package verifiers: pip install -e '.[dev]'")
        done = subprocess.run(
            ["bash", "-e", "-c", command], cwd=tmp_path, env=os.environ | paths, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for line in expected.splitlines():
            assert line in done.stdout.splitlines()
    said = " ".join(done.stdout.split())
    assert "1 vat-1 the reference solution fails: visible check 'twenty'" in said
    assert "2 vat-2 folder: 'nowhere' is no folder in broken: write its path relative to the pack" in said


def test_the_tasksets_are_those_of_the_tests() -> None:
    page = PAGE.read_text()
    for name in ("stockroom", "sums"):
        source = Path(__file__).with_name("tasksets").joinpath(f"{name}.py").read_text()
        assert f"cat > {name}.py <<'END'\n{source}END\n" in page
