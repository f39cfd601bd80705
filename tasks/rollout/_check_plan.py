"""Splits a check into steps, so that what it expects need not enter the process that holds the agent's code.

check code -> one step a top-level statement -> (sent: source or left side; kept: operator and expected value)
"""

from __future__ import annotations

import ast
import copy
import functools
import textwrap
from dataclasses import dataclass
from typing import Any

from tasks.rollout._parse import parse


@dataclass(frozen=True, slots=True)
class Step:
    """One top-level statement of a check.

    `left` is None for a statement that is simply run. For an assert it is the source whose value is reported;
    `operator` an ast name such as "Eq", or None where the value's truth counts (`negated` for `assert not`);
    `right` the source of the other side where that is no literal; where it is one, it stays here as `expected`.
    `flipped`: the literal stood on the left, `left` is the source of the right side.
    """

    shown: str
    source: str
    left: str | None = None
    operator: str | None = None
    right: str | None = None
    expected: Any = None
    negated: bool = False
    flipped: bool = False

    def sent(self) -> dict[str, Any]:
        """What the process with the agent's code is told."""
        hidden = self.operator is not None and self.right is None
        operator = None if hidden else self.operator
        return {"source": self.source, "left": self.left, "right": self.right, "operator": operator, "hidden": hidden}


@functools.lru_cache(maxsize=4096)
def plan(code: str) -> tuple[Step, ...]:
    """The steps of a check's code; SyntaxError where it is no Python."""
    code = textwrap.dedent(code)
    return tuple(_step(statement, code) for statement in parse(code, "<check>").body)


@functools.lru_cache(maxsize=4096)
def uses(code: str) -> tuple[str, ...]:
    """Names in a check's code that may be modules: they are put back to their own state before each of its steps."""
    names = {node.id for node in ast.walk(parse(textwrap.dedent(code))) if isinstance(node, ast.Name)}
    return tuple(sorted(names.union(imports(code))))


@functools.lru_cache(maxsize=4096)
def imports(code: str) -> tuple[str, ...]:
    """Modules that a check's code imports."""
    found = set()
    for node in ast.walk(parse(textwrap.dedent(code))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return tuple(sorted(found))


def modules_of(files: dict[str, str]) -> list[str]:
    """Import names of the Python files, in the order of their paths: `pkg/part.py` is `pkg.part`."""
    names = []
    for path in sorted(files):
        if not path.endswith(".py"):
            continue
        parts = path.removesuffix(".py").split("/")
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts and all(part.isidentifier() for part in parts) and parts[-1] != "__main__":
            names.append(".".join(parts))
    return names


def _step(statement: ast.stmt, code: str) -> Step:
    if not isinstance(statement, ast.Assert):
        shown = _squeezed(ast.get_source_segment(code, statement) or "")
        return Step(shown=shown, source=_guarded(_Telling(code).visit(statement)))
    test = statement.test
    shown = _squeezed(ast.get_source_segment(code, test) or ast.unparse(test))
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return Step(shown=shown, source="", left=_guarded(test.operand), negated=True)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return Step(shown=shown, source="", left=_guarded(test))
    left, operator, right = test.left, type(test.ops[0]).__name__, test.comparators[0]
    for side, other, flipped in ((left, right, False), (right, left, True)):
        try:
            expected = ast.literal_eval(other)
        except (ValueError, TypeError):
            continue
        source = _guarded(side)
        return Step(shown=shown, source="", left=source, operator=operator, expected=expected, flipped=flipped)
    return Step(shown=shown, source="", left=_guarded(left), operator=operator, right=_guarded(right))


def _guarded(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(_Guarding().visit(copy.deepcopy(node))))


class _Guarding(ast.NodeTransformer):
    """Has `_check_plain` make the comparisons, in which an agent's object may claim to equal everything."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        operators: list[ast.expr] = [ast.Constant(type(operator).__name__) for operator in node.ops]
        values = [ast.Tuple(operators, ast.Load()), node.left, *node.comparators]
        return ast.Call(ast.Name("_compared_", ast.Load()), values, [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(ast.Name("abs"), [ast.BinOp(left, ast.Sub(), right)], []):
                return ast.Call(ast.Name("_distance_", ast.Load()), [left, right], [])
        return node


class _Telling(ast.NodeTransformer):
    """Gives each nested `assert A == B` the message that a top-level one gets from its value."""

    def __init__(self, code: str) -> None:
        self._code = code

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        test = node.test
        if node.msg is not None or not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return node
        shown = _squeezed(ast.get_source_segment(self._code, test) or ast.unparse(test))
        got = ast.NamedExpr(target=ast.Name("_got_", ast.Store()), value=test.left)
        told = ast.Call(ast.Name("_failed_", ast.Load()), [ast.Constant(shown), ast.Name("_got_", ast.Load())], [])
        return ast.Assert(ast.Compare(got, test.ops, test.comparators), told)


def _squeezed(source: str) -> str:
    return " ".join(source.split()) if "\n" in source else source.strip()
