"""Which side of the train / held-out split a function belongs to, by its normalised source.

source -> no docstring, names by order of appearance -> sha256 -> "train" | "heldout"

Every function of a training problem or of a demonstration (correct, with its bugs, half mended, or with an expert's
mistake) must be on the train side, and every one of a held-out problem on the other; so no held-out function occurs in
any training data.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
from functools import lru_cache
from typing import Literal

Side = Literal["train", "heldout"]
HELDOUT_SHARE = 0.25


class _Renamer(ast.NodeTransformer):
    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def _rename(self, name: str) -> str:
        return name if hasattr(builtins, name) else self.names.setdefault(name, f"n{len(self.names)}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.name = self._rename(node.name)
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self._rename(node.arg)
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._rename(node.id)
        return node


def normalise(source: str) -> str:
    """The source without docstrings, comments and layout, its own names replaced by n0, n1, ... in order."""
    return ast.unparse(_Renamer().visit(ast.parse(source)))


@lru_cache(maxsize=200_000)
def side_of(source: str) -> Side:
    """The side of one function's source, by a hash of its normalised form."""
    digest = hashlib.sha256(normalise(source).encode()).digest()
    return "heldout" if digest[0] / 256 < HELDOUT_SHARE else "train"


def functions_in(source: str) -> list[str]:
    """The top-level functions of a module, each as source."""
    return [ast.unparse(node) for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]


def all_on(source: str, side: Side) -> bool:
    """Whether every function of a module is on `side`; text that does not parse is no function at all."""
    try:
        return all(side_of(function) == side for function in functions_in(source))
    except SyntaxError:
        return True
