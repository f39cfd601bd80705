"""What a call costs over the time of its own code: warm fork, checks, plain process, bubblewrap.

    python tests/benchmarks/sandbox.py [--calls 200]

All run the same program on the same file and take turns call by call, so that a busy moment meets all of them. The cost
is the wall-clock time of the call less what the program itself measured from its first line to its last.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from data_contracts.records import Check, Limits
from tasks.rollout._bwrap import environment, sandbox_command
from tasks.rollout.checks import run_checks
from tasks.rollout.sandbox import WarmPool, run

PROGRAM = """
import time
started = time.perf_counter()
total = 0
for number in range(2000):
    total += number * number % 7
print(time.perf_counter() - started)
"""
PYTHON = os.path.realpath(sys.executable)
FILES = {"main.py": PROGRAM}
COMMAND = ["python", "main.py"]
LIMITS = Limits(seconds=20, memory_mb=128)
CHECKS = [Check(name="c", code="assert total > 0")]


def in_process() -> float:
    """The program's own time, in this process: what checks, which print nothing, are compared with."""
    space: dict[str, object] = {"print": lambda *_: None}
    started = time.perf_counter()
    exec(PROGRAM, space)
    return time.perf_counter() - started


def plain() -> float:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "main.py").write_text(PROGRAM)
        command = [PYTHON, "-P", "-s", "-S", "main.py"]
        done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=True)
    return float(done.stdout)


def bubblewrap() -> float:
    command = [*sandbox_command(), PYTHON, "-P", "-s", "-S", "-c", PROGRAM]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measured(call: Callable[[], float]) -> float:
    """Milliseconds of one call over the code's own time."""
    started = time.perf_counter()
    own = call()
    return (time.perf_counter() - started - own) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=200)
    calls = parser.parse_args().calls
    with WarmPool(1, "benchmark", require_isolation=True) as pool:

        def checked() -> float:
            assert run_checks(FILES, CHECKS, LIMITS, pool).passed == 1
            return own

        own = min(in_process() for _ in range(20))
        ways: dict[str, Callable[[], float]] = {
            "warm fork": lambda: float(pool.run(COMMAND, FILES, LIMITS).stdout),
            "warm fork, one check": checked,
            "plain process": plain,
            "bubblewrap process": bubblewrap,
            "sandbox for one call": lambda: float(run(COMMAND, FILES, LIMITS).stdout),
        }
        for way in ways.values():
            way()
        costs = np.array([[measured(way) for way in ways.values()] for _ in range(calls)])
    median, p95 = np.median(costs, axis=0), np.percentile(costs, 95, axis=0)
    print(f"{'ms over the own time':24}{'median':>10}{'p95':>10}{'over the warm fork':>20}   ({calls} calls each)")
    for name, half, most in zip(ways, median, p95, strict=True):
        print(f"{name:24}{half:10.2f}{most:10.2f}{half / median[0]:20.1f}")


if __name__ == "__main__":
    main()
