"""Which of the files that an agent left are its work, and which would only take over the check.

files as left -> the problem's own as left, new ones; protected and taking-over ones as they were, or dropped
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from data_contracts.records import Problem

TAKES_OVER: tuple[str, ...] = (
    *("conftest.py", "sitecustomize.py", "usercustomize.py", "*.pth", "*.pyc", "*.so"),
    *("pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "setup.py", "noxfile.py"),
    *("[Mm]akefile", "GNUmakefile", "package.json", ".npmrc"),
)
"""Names of files that interpreters, test runners and build tools obey by themselves."""


def handed_in(problem: Problem, files: Mapping[str, str]) -> dict[str, str]:
    """The project as it is judged: a file that cannot be handed in is the problem's own, or is not there."""
    unseen = {**problem.hidden_files, **problem.control}
    final = dict(problem.files)
    for path, text in files.items():
        own = path in problem.files
        if not refusal(problem, path) and path not in unseen and (own or not in_the_way(path, unseen)):
            final[path] = text
    return final


def refusal(problem: Problem, path: str) -> str:
    """Why a change to this path is no part of the work, as the agent may read it; empty where it is part of it."""
    if fault := _path_fault(path):
        return fault
    if _matches(path, problem.protected):
        return f"{path} is protected"
    if _matches(PurePosixPath(path).name, TAKES_OVER):
        return f"{path} is protected: tools obey it"
    if path in problem.files:
        return ""
    if other := in_the_way(path, problem.files):
        return f"{path} is in the way of {other}"
    first = path.partition("/")[0].removesuffix(".py")
    return f"{path} would hide the standard module {first}" if first in sys.stdlib_module_names else ""


def in_the_way(path: str, files: Iterable[str]) -> str:
    """A file that cannot be beside this one, as one of the two would have to be a folder too; empty where none is."""
    return next((other for other in files if other.startswith(path + "/") or path.startswith(other + "/")), "")


def _path_fault(path: str) -> str:
    plain = PurePosixPath(path).as_posix() == path and "\0" not in path and path != "."
    if plain and not path.startswith("/") and ".." not in path.split("/"):
        return ""
    return f"{path!r} is no path inside the project"


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern covers the path: shell-like over the whole path, or the name of a folder above it."""
    return any(fnmatchcase(path, each) or path.startswith(each.rstrip("/") + "/") for each in patterns)
