"""Python's own parser, one thread at a time.

Until 3.11.8 and 3.12.2 the depth of the tree under construction is counted per interpreter, not per thread: two
threads in `ast.parse` at once end in a SystemError (CPython issue 106905).
"""

from __future__ import annotations

import ast
from threading import Lock
from typing import Any

_LOCK = Lock()


def parse(code: str, filename: str = "<unknown>") -> ast.Module:
    """`ast.parse`, for use by threads; SyntaxError where it is no Python."""
    with _LOCK:
        return ast.parse(code, filename)


def literal(text: str) -> Any:
    """`ast.literal_eval`, for use by threads; ValueError or SyntaxError where it is no literal."""
    with _LOCK:
        tree = ast.parse(text.lstrip(" \t"), mode="eval")
    return ast.literal_eval(tree)
