"""Small mistakes in real code: each mutant changes one place of one function, and nothing of the layout around it.

source -> syntax tree -> places in the text -> [Mutant, ...]

The kinds are the classic operators of mutation testing (DeMillo, Lipton and Sayward 1978; Offutt et al. 1996).
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple


class Mutant(NamedTuple):
    """A change of a source: bytes from `start` to `end` become `text`, a mistake of some `kind` in `line` (from 1)."""

    start: int
    end: int
    text: bytes
    kind: str
    line: int

    def of(self, source: str) -> str:
        """The source with the mistake in it; it may be one that does not parse."""
        code = source.encode()
        return (code[: self.start] + self.text + code[self.end :]).decode()


_SWAPPED: dict[type[ast.AST], tuple[bytes, tuple[bytes, ...]]] = {
    ast.Add: (b"+", (b"-",)), ast.Sub: (b"-", (b"+",)), ast.Mult: (b"*", (b"+",)), ast.Div: (b"/", (b"*",)),
    ast.FloorDiv: (b"//", (b"/", b"%")), ast.Mod: (b"%", (b"//",)), ast.Pow: (b"**", (b"*",)),
    ast.LShift: (b"<<", (b">>",)), ast.RShift: (b">>", (b"<<",)),
    ast.BitAnd: (b"&", (b"|",)), ast.BitOr: (b"|", (b"&",)), ast.BitXor: (b"^", (b"&",)),
    ast.Lt: (b"<", (b"<=", b">")), ast.LtE: (b"<=", (b"<",)), ast.Gt: (b">", (b">=", b"<")), ast.GtE: (b">=", (b">",)),
    ast.Eq: (b"==", (b"!=",)), ast.NotEq: (b"!=", (b"==",)), ast.Is: (b"is", (b"is not",)),
    ast.IsNot: (b"is not", (b"is",)), ast.In: (b"in", (b"not in",)), ast.NotIn: (b"not in", (b"in",)),
    ast.And: (b"and", (b"or",)), ast.Or: (b"or", (b"and",)),
}  # fmt: skip
_UNTOUCHED = frozenset({"annotation", "returns", "decorator_list", "type_params"})
"""Fields of a node in which a change is no mistake of behaviour."""


def mutants_of(source: str) -> list[Mutant]:
    """Every mutant of the functions of a module, in the order of their places; SyntaxError where it does not parse."""
    places = _Places(source.encode())
    return sorted({edit for function in _functions(ast.parse(source)) for edit in _edits(function, places)})


class _Places:
    """Byte offsets in a source: of nodes, and of what stands between two of them."""

    def __init__(self, code: bytes) -> None:
        self.code = code
        self._starts = [0, *(match.end() for match in re.finditer(rb"\n", code))]

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def text(self, node: ast.expr | ast.stmt) -> bytes:
        return self.code[self.start(node) : self.end(node)]

    def edit(self, start: int, end: int, text: bytes, kind: str) -> Mutant:
        return Mutant(start, end, text, kind, bisect_right(self._starts, start))

    def between(self, left: ast.expr, right: ast.expr, sought: bytes) -> tuple[int, int] | None:
        """Where `sought` stands between two nodes; None where a comment there could hold it too."""
        gap = self.code[self.end(left) : self.start(right)]
        word = re.escape(sought).replace(rb"\ ", rb"\s+")
        match = None if b"#" in gap else re.search(word, gap)
        return match and (self.end(left) + match.start(), self.end(left) + match.end())


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The outermost functions; what lies in them is walked with them."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from _functions(child)


def _edits(function: ast.AST, places: _Places) -> Iterator[Mutant]:
    for node in _walk(function):
        yield from _of_node(node, places)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes in which a mistake can be made; docstrings, f-strings, annotations and decorators are left out."""
    yield node
    body = getattr(node, "body", None)
    docstring = body[0] if isinstance(body, list) and body and isinstance(node, _DOCUMENTED) else None
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            documents = child is docstring and isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            apart = name in _UNTOUCHED or documents or isinstance(child, ast.JoinedStr)
            if isinstance(child, ast.AST) and not apart:
                yield from _walk(child)


_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _of_node(node: ast.AST, places: _Places) -> Iterator[Mutant]:
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            yield from _swapped(op, left, right, "arithmetic", places)
        case ast.AugAssign(target=target, op=op, value=value):
            yield from _swapped(op, target, value, "arithmetic", places)
            yield places.edit(places.start(node), places.end(node), b"pass", "lost statement")
        case ast.Compare(left=left, ops=ops, comparators=others):
            for (a, b), compared in zip(pairwise([left, *others]), ops, strict=True):
                yield from _swapped(compared, a, b, "comparison", places)
        case ast.BoolOp(op=op, values=values):
            for a, b in pairwise(values):
                yield from _swapped(op, a, b, "logic", places)
        case ast.UnaryOp(op=ast.Not()):
            start = places.start(node)
            length = len(re.match(rb"not\s*", places.text(node)).group())  # type: ignore[union-attr]
            yield places.edit(start, start + length, b"", "logic")
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield places.edit(places.start(test), places.end(test), b"not (" + places.text(test) + b")", "condition")
        case ast.Constant(value=value):
            yield from _constant(node, value, places)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield places.edit(places.start(value), places.end(value), b"None", "return value")
        case ast.Call(args=[first, second, *_]) if not any(isinstance(a, ast.Starred) for a in (first, second)):
            gap = places.code[places.end(first) : places.start(second)]
            swapped = places.text(second) + gap + places.text(first)
            yield places.edit(places.start(first), places.end(second), swapped, "argument order")
        case ast.Expr(value=ast.Call()):
            yield places.edit(places.start(node), places.end(node), b"pass", "lost statement")
        case ast.Break() | ast.Continue():
            other = b"continue" if isinstance(node, ast.Break) else b"break"
            yield places.edit(places.start(node), places.end(node), other, "loop")


def _swapped(op: ast.AST, left: ast.expr, right: ast.expr, kind: str, places: _Places) -> Iterator[Mutant]:
    written, others = _SWAPPED.get(type(op), (b"", ()))
    where = places.between(left, right, written) if others else None
    if where is not None:
        yield from (places.edit(*where, other, kind) for other in others)


def _constant(node: ast.Constant, value: object, places: _Places) -> Iterator[Mutant]:
    others: Sequence[object] = ()
    if isinstance(value, bool):
        others = (not value,)
    elif isinstance(value, int):
        others = (value + 1, value - 1) if value else (1,)
    yield from (places.edit(places.start(node), places.end(node), str(other).encode(), "constant") for other in others)
