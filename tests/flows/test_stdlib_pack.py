"""Real code through the same commands: functions of the standard library, each with a bug put in."""

from __future__ import annotations

import calendar
import colorsys
import difflib
import inspect
import ipaddress
import json
import quopri
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.problems import write_pack
from data_contracts.records import Check, Limits, Problem
from tasks.curriculum.generator.bugs import bugs_of
from tasks.curriculum.generator.problems import apply
from tasks.paths import RunFolder

ROOT = Path(__file__).parents[2]
CALLS: dict[Callable[..., Any], list[tuple[Any, ...]]] = {
    calendar.isleap: [(2000,), (1900,), (2024,), (2023,), (2100,)],
    calendar.leapdays: [(2000, 2024), (1896, 1905), (1, 2), (1600, 2000), (1999, 2001)],
    colorsys.rgb_to_yiq: [(0.5, 0.25, 0.125), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.5, 0.5, 0.5)],
    colorsys.rgb_to_hsv: [(0.5, 0.25, 0.125), (1.0, 0.0, 0.5), (0.0, 1.0, 0.25), (0.0, 0.0, 1.0), (0.5, 0.5, 0.5)],
    colorsys.yiq_to_rgb: [(0.5, 0.25, 0.125), (1.0, 0.0, 0.0), (0.25, 0.5, 0.0), (0.5, 0.0, 0.25), (0.0, 0.0, 0.0)],
    colorsys.rgb_to_hls: [(0.5, 0.25, 0.125), (1.0, 0.0, 0.5), (0.0, 1.0, 0.25), (0.0, 0.0, 1.0), (0.5, 0.5, 0.5)],
    difflib._calculate_ratio: [(3, 12), (0, 0), (1, 2), (5, 10), (0, 4)],  # type: ignore[attr-defined]
    ipaddress._count_righthand_zero_bits: [(8, 32), (0, 32), (12, 2), (1, 8), (6, 8)],  # type: ignore[attr-defined]
    quopri.unhex: [(b"0A",), (b"ff",), (b"7",), (b"10",), (b"C3",)],
    quopri.ishex: [(b"0",), (b"g",), (b"F",), (b"a",), (b" ",)],
    string.capwords: [("a bc", None), ("one  two", None), ("x-y", "-"), ("ABC d", None), ("e.f", ".")],
}


def outcome(source: str, call: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    try:
        return eval(call, namespace)
    except Exception as error:  # whatever a broken function raises is its outcome
        return type(error)


def problem_of(function: Callable[..., Any]) -> Problem:
    """The first bug that both the visible and the hidden checks tell."""
    source, name = inspect.getsource(function), function.__name__
    calls = [f"{name}({', '.join(map(repr, arguments))})" for arguments in CALLS[function]]
    right = [function(*arguments) for arguments in CALLS[function]]
    for bug in bugs_of(source):
        broken = apply(source, bug)
        try:
            compile(broken, name, "exec")
        except SyntaxError:
            continue
        tells = [outcome(broken, call) != value for call, value in zip(calls, right, strict=True)]
        if any(tells[:2]) and any(tells[2:]):
            break
    else:
        raise AssertionError(f"no bug of {name} is told by its checks")
    checks = [
        Check(name=f"check-{i}", code=f"assert {c} == {v!r}") for i, (c, v) in enumerate(zip(calls, right, strict=True))
    ]
    return Problem(
        id=f"stdlib-{name}",
        prompt=f"Tests fail. Fix {name} in main.py.",
        files={"main.py": broken},
        solution={"main.py": source},
        visible=tuple(checks[:2]),
        hidden=tuple(checks[2:]),
        limits=Limits(turns=6, tokens=180),
        tags=(bug.kind,),
    )


def ratchet(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "flows.cli", *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stdlib")
    write_pack(folder, [problem_of(function) for function in CALLS])
    return folder


def test_intake_admits_every_function(pack: Path) -> None:
    checked = ratchet("problems", "check", str(pack))
    assert checked.returncode == 0, checked.stdout
    assert f"{len(CALLS)} of {len(CALLS)} problems admitted" in checked.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_pack_is_rolled_out_and_reported(pack: Path, tmp_path: Path) -> None:
    settings = {
        "iterations": 1, "curriculum.pack": str(pack), "curriculum.heldout_pack": str(pack),
        "curriculum.problems_per_iteration": len(CALLS), "rollout.rollouts_per_problem": 2,
        "release.name": "stdlib-agent",
        "curriculum.intake.contaminated": "keep",  # the same pack on both sides
    }  # fmt: skip
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    done = ratchet("run", str(ROOT / "infra/recipes/smoke.toml"), "--home", str(tmp_path), *changes)
    (file,) = tmp_path.glob("smoke-*/recipe.json")
    run = RunFolder(file.parent)
    assert done.returncode in (0, 3), done.stderr[-3000:]
    summary = json.loads(run.summary.read_text())
    assert summary["rollouts"]["training"] == 2 * len(CALLS)
    assert summary["success"]["after"]["short"]["n"] == len(CALLS)
    assert "stdlib-" in run.report.read_text()
