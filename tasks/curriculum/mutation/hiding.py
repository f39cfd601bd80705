"""Takes tests out of test files, and leaves the rest as it stands.

files, tests to hide (`file::qualified name`) -> the files that change
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping


def without_tests(files: Mapping[str, str], tests: Collection[str]) -> dict[str, str]:
    """The files that define some of the tests, without them; a class that is left empty says `pass`."""
    names: dict[str, set[str]] = {}
    for test in tests:
        path, _, name = test.partition("::")
        names.setdefault(path, set()).add(name)
    return {path: _without(files[path], names[path]) for path in sorted(names) if path in files}


def _without(source: str, names: Collection[str]) -> str:
    lines = source.splitlines(keepends=True)
    for first, last, filler in sorted(_cuts(ast.parse(source), "", names), reverse=True):
        lines[first - 1 : last] = [filler] if filler else []
    return "".join(lines)


def _cuts(node: ast.AST, prefix: str, names: Collection[str]) -> list[tuple[int, int, str]]:
    """(first line, last line, what stands there instead) of every function to go."""
    body: list[ast.stmt] = getattr(node, "body", [])
    gone = [
        child
        for child in body
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and prefix + child.name in names
    ]
    cuts = []
    for child in body:
        if child in gone:
            start = min([child.lineno, *(each.lineno for each in child.decorator_list)])
            empty = len(gone) == len(body) and child is body[0]
            cuts.append((start, child.end_lineno or child.lineno, " " * child.col_offset + "pass\n" if empty else ""))
        elif isinstance(child, ast.ClassDef):
            cuts += _cuts(child, f"{prefix}{child.name}.", names)
    return cuts
