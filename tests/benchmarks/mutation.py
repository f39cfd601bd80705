"""Problems from real packages: how many mutants were made, verified and dropped, and why.

python tests/benchmarks/mutation.py [--per-module 4] [--tries 20]

Packages that ship their tests, as they are installed; of the standard library those that this Python has tests for.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tasks.curriculum.intake import intake
from tasks.curriculum.mutation import Terms, mutate, open_project
from tasks.rollout.sandbox import WarmPool

INSTALLED = {"hjson": "hjson/*.py", "smmap": "smmap/*.py"}
STANDARD = ("graphlib", "shlex", "textwrap", "colorsys")


def installed(name: str, folder: Path) -> Path:
    """A copy of a package with its tests."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None, f"{name} is not installed: pip install {name}"
    shutil.copytree(Path(spec.origin).parent, folder / name / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder / name


def standard(folder: Path) -> Path:
    """Modules of the standard library as a package `plain`, and their own tests."""
    root = folder / "standard"
    (root / "plain").mkdir(parents=True)
    library = Path(shutil.__file__).parent
    for name in STANDARD:
        test = (library / "test" / f"test_{name}.py").read_text()
        (root / f"plain/{name}.py").write_text((library / f"{name}.py").read_text())
        (root / f"test_{name}.py").write_text(
            test.replace(f"import {name}\n", f"from plain import {name}\n").replace(
                f"from {name} ", f"from plain.{name} "
            )
        )
    return root


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-module", type=int, default=4)
    parser.add_argument("--tries", type=int, default=20)
    given = parser.parse_args()
    table = Table(title="mutants of real packages")
    for column in ("package", "modules", "tried", "problems", "admitted by intake", "dropped, by reason"):
        table.add_column(column)
    with tempfile.TemporaryDirectory() as temporary, WarmPool(2, "verifier") as pool:
        projects = [(installed(name, Path(temporary)), pattern) for name, pattern in INSTALLED.items()]
        if importlib.util.find_spec("test.test_colorsys"):
            projects.append((standard(Path(temporary)), "plain/*.py"))
        else:
            print("this Python comes without the standard library's tests: it is left out", file=sys.stderr)
        for folder, pattern in projects:
            project = open_project(folder, pattern)
            done = mutate(project, pool, Terms(per_module=given.per_module, tries=given.tries))
            admitted, _ = intake(done.problems, pool)
            why = "\n".join(f"{count} {reason}" for reason, count in done.dropped.most_common())
            row = len(project.modules), done.tried, len(done.problems), len(admitted)
            table.add_row(project.name, *map(str, row), why)
            print(f"{project.name}: {row}", flush=True)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
