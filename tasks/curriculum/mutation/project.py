"""A project with tests, as its mutants are tried: which files are code, which are tests, and how the tests run.

folder -> Project -> run in a sandbox -> the tests that pass, by where they are defined
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from data_contracts.errors import UserError
from data_contracts.folders import read_folder
from data_contracts.records import Limits
from tasks.curriculum.mutation.hiding import without_tests
from tasks.rollout.environments.handed_in import TAKES_OVER
from tasks.rollout.sandbox import WarmPool

RUNNER = "ratchet_tests.py"
RUNNER_SOURCE = (Path(__file__).parent / "_run_tests.py").read_text()


class Project(NamedTuple):
    """Files by path; `modules` are those that get mistakes, `tests` those that tell them."""

    name: str
    files: dict[str, str]
    modules: tuple[str, ...]
    tests: tuple[str, ...]

    def command(self, *, report: bool = False) -> tuple[str, ...]:
        """The program that runs the tests."""
        return ("python", RUNNER, *(("--report",) if report else ()), *self.tests)

    def with_files(self, changed: Mapping[str, str]) -> dict[str, str]:
        """The files with some changed, and the runner."""
        return {**self.files, **changed, RUNNER: RUNNER_SOURCE}


class Tried(NamedTuple):
    """Tests by where they are defined (`file::qualified name`); `fault` says why nothing is known of them."""

    passed: frozenset[str]
    failed: frozenset[str]
    fault: str
    seconds: float


def open_project(folder: Path, modules: str = "*.py", tests: str = "test_*.py") -> Project:
    """Read a folder; `modules` and `tests` are patterns over whole paths or names. Raises UserError with the remedy."""
    try:
        files = read_folder(folder)
    except ValueError as error:
        raise UserError(str(error)) from error
    python = [path for path in files if path.endswith(".py")]
    tested = tuple(path for path in python if _fits(path, tests))
    chosen = tuple(path for path in python if _fits(path, modules) and path not in tested and not _apart(path))
    if not tested:
        raise UserError(f"{folder} holds no tests named {tests}: give their pattern with --tests.")
    if not chosen:
        raise UserError(f"{folder} holds no modules named {modules}: give their pattern with --modules.")
    return Project(folder.resolve().name, files, chosen, tested)


def try_tests(project: Project, changed: Mapping[str, str], limits: Limits, pool: WarmPool) -> Tried:
    """Run all tests of the project with some of its files changed; raises SandboxError."""
    result = pool.run(project.command(report=True), project.with_files(changed), limits)
    last = result.stdout.strip().rpartition("\n")[2]
    if result.ended != "exit" or not last.startswith("{"):
        how = result.ended if result.ended != "exit" else f"exit code {result.exit_code}"
        return Tried(frozenset(), frozenset(), f"ended by {how}", result.seconds)
    verdicts: dict[str, bool] = json.loads(last)
    passed = frozenset(test for test, verdict in verdicts.items() if verdict)
    return Tried(passed, frozenset(verdicts) - passed, "", result.seconds)


def with_passing_tests(project: Project, own: Tried) -> Project:
    """The project with the tests that pass as it is, and no others."""
    loaded = {test.partition("::")[0] for test in own.passed}
    tests = tuple(path for path in project.tests if path in loaded and path not in own.failed)
    return project._replace(files={**project.files, **without_tests(project.files, own.failed)}, tests=tests)


def _fits(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or fnmatchcase(PurePosixPath(path).name, pattern)


def _apart(path: str) -> bool:
    """Whether a module is no part of what an agent may mend: tests' helpers, and names that tools obey."""
    parts = PurePosixPath(path).parts
    return any(part in ("test", "tests") for part in parts[:-1]) or any(fnmatchcase(parts[-1], t) for t in TAKES_OVER)
