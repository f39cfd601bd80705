"""Bug kinds: each changes one line of a correct function into a plausible wrong one.

line -> [(kind, wrong line), ...]
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Bug(NamedTuple):
    """One wrong line: where, what it reads instead, and the kind of mistake."""

    line: int
    text: str
    kind: str


_OPERATORS = {
    " + ": (" - ",), " - ": (" + ",), " * ": (" + ",), " // ": (" % ", " * "), " % ": (" // ",),
    " < ": (" <= ", " > "), " > ": (" >= ", " < "), " <= ": (" < ",), " >= ": (" > ",),
    " == ": (" != ",), " != ": (" == ",), " and ": (" or ",), " or ": (" and ",),
    " += ": (" -= ", " = "), "upper": ("lower", "title"), "lower": ("upper",), "title": ("upper",),
}  # fmt: skip
_NUMBER = re.compile(r"(?<![\w'])\d+(?![\w'])")
_NAME = re.compile(r"(?<![\w'.])[a-z]+(?![\w'(])")
_KEYWORDS = {"if", "for", "in", "return", "while", "and", "or", "else", "def", "not", "i", "ch"}


def bugs_of(source: str) -> list[Bug]:
    """Every single-line bug of a function, in order; the signature and the docstring stay as they are."""
    lines = source.splitlines()
    names = sorted({n for line in lines[2:] for n in _NAME.findall(line) if n not in _KEYWORDS})
    found = [
        Bug(number, text, kind)
        for number, line in enumerate(lines)
        if number >= 2
        for kind, text in (*_operator(line), *_constant(line), *_variable(line, names))
    ]
    return [bug for bug in found if bug.text != lines[bug.line]]


def _operator(line: str) -> list[tuple[str, str]]:
    wrong = []
    for old, news in _OPERATORS.items():
        for match in re.finditer(re.escape(old), line):
            wrong += [("operator", line[: match.start()] + new + line[match.end() :]) for new in news]
    return wrong


def _constant(line: str) -> list[tuple[str, str]]:
    wrong = []
    for match in _NUMBER.finditer(line):
        for step in (1, -1, 2):
            value = int(match.group()) + step
            if value >= 0:
                wrong.append(("constant", line[: match.start()] + str(value) + line[match.end() :]))
    return wrong


def _variable(line: str, names: list[str]) -> list[tuple[str, str]]:
    head = re.match(r"\s*(\w+)( \+=| =) ", line)
    start = head.end() if head else 0
    wrong = []
    for match in _NAME.finditer(line, start):
        if match.group() in names and not re.match(r"\s*for ", line):
            wrong += [
                ("variable", line[: match.start()] + other + line[match.end() :])
                for other in names
                if other != match.group()
            ]
    return wrong
