"""The Triton path: its cases in the interpreter, its kernels compiled for GPUs that need not be here, its index sizes.

Triton decides at its first import whether it interprets, so both run in processes of their own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
CASES = ["test_token_logprobs.py", "test_bits.py", "test_large.py"]


def _python(*arguments: str, interpret: str) -> str:
    environment = {**os.environ, "TRITON_INTERPRET": interpret}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, cwd=HERE.parents[1], timeout=570
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def test_every_case_in_the_interpreter() -> None:
    files = [str(HERE / name) for name in CASES]
    options = ("-p", "no:xdist", "-p", "no:cacheprovider", "-k", "triton", "-o", "addopts=--import-mode=importlib")
    report = _python("-m", "pytest", *options, *files, interpret="1")
    passed = re.search(r"(\d+) passed", report)
    assert passed and int(passed[1]) >= 50, report
    assert not re.search(r"failed|skipped|error", report), report


@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_for_gpus_without_atomics_and_within_shared_memory(capability: int) -> None:
    lines = _python(str(HERE / "compile_triton.py"), str(capability), interpret="0").splitlines()
    assert len(lines) == 4
    for line in lines:
        name, shared, atomics = line.split()
        assert int(shared) <= {80: 163, 90: 227}[capability] * 1024, name
        assert atomics == "0", name


def test_grids_stay_in_x_and_offsets_in_64_bits() -> None:
    script = (
        "from ratchet_kernels.triton_path import *;"
        "print(stripe_grid(2**24, 2**20, MIDDLE), stripe_grid(2**24, 2**20, NARROW),"
        "workspace_columns(8192, 151936, 2, WIDE), workspace_columns(2**24, 151936, 4, WIDE),"
        "workspace_columns(4, 300, 2, WIDE))"
    )
    # (131072 row blocks x 256 stripes,): far beyond the 65,535 of y and z, within the 2^31 - 1 of x
    assert _python("-c", script, interpret="1").strip() == "(33554432,) (67108864,) 16384 256 512"
