"""Runs the tests of the files it is given: python ratchet_tests.py [--report] tests/test_a.py ...

Test cases of `unittest`, and plain functions named test_* that take no argument. Exit code 0: all passed. A part of a
problem's files, so it knows the standard library alone.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
import traceback
import unittest
from collections.abc import Callable, Iterator
from typing import Any


def tests_of(path: str) -> Iterator[tuple[str, unittest.TestCase]]:
    """(where it is defined, test) for every test of a file, in order."""
    module = importlib.import_module(path.removesuffix(".py").removeprefix("src/").replace("/", "."))
    for name, value in list(vars(module).items()):
        own = getattr(value, "__module__", None) == module.__name__
        if own and inspect.isclass(value) and issubclass(value, unittest.TestCase):
            for method in unittest.defaultTestLoader.getTestCaseNames(value):
                yield place(getattr(value, method)), value(method)
        elif own and name.startswith("test") and inspect.isfunction(value) and not inspect.signature(value).parameters:
            yield place(value), unittest.FunctionTestCase(value)


def place(function: Callable[..., Any]) -> str:
    """`file::qualified name` of a function as it stands in the source."""
    function = inspect.unwrap(function)
    return f"{os.path.relpath(function.__code__.co_filename)}::{function.__qualname__}"


def fault_of(test: unittest.TestCase) -> str | None:
    """Why a test fails, None where it passes; one that skips itself says nothing and passes."""
    result = unittest.TestResult()
    test(result)
    faults = [trace for _, trace in (*result.failures, *result.errors)]
    faults += ["it passed, and was expected to fail"] * len(result.unexpectedSuccesses)
    return faults[0].strip() if faults else None


def faults_of(paths: list[str]) -> dict[str, str | None]:
    """Why it fails, or None, by where a test is defined; a file that cannot be loaded fails as a whole."""
    faults: dict[str, str | None] = {}
    for path in paths:
        try:
            for where, test in tests_of(path):
                faults[where] = faults.get(where) or fault_of(test)
        except Exception:  # whatever a file raises when it is loaded is its verdict
            faults[path] = traceback.format_exc(limit=-1).strip()
    return faults


def main(arguments: list[str]) -> int:
    """Print what failed (with --report: whether each test passed, as JSON); 0 where all passed."""
    sys.path[:0] = ["src"] if os.path.isdir("src") else []
    faults = faults_of([argument for argument in arguments if argument != "--report"])
    passed = {where: fault is None for where, fault in faults.items()}
    if "--report" in arguments:
        print("\n" + json.dumps(passed))
    else:
        for where, fault in faults.items():
            if fault is not None:
                print(where, fault, sep="\n", file=sys.stderr)
        print(f"{sum(passed.values())} of {len(passed)} tests pass", file=sys.stderr)
    return int(not passed or not all(passed.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
