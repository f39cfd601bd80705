"""Checks are parsed by many threads at once: a garbage collection in the midst of one must not fail another."""

from __future__ import annotations

import ast
import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tasks.rollout._parse import literal, parse

CODES = [f"assert f({n}, [1, 2, (3, 4)]) == {{'a': [1, (2, {n})]}}" for n in range(300)]


class Cycle:
    """Garbage whose end lets other threads run."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        time.sleep(0)


@contextmanager
def collecting_all_the_time() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(5)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def by_four_threads(parser: Callable[[str], object]) -> None:
    def work(_: int) -> None:
        for code in CODES:
            Cycle()
            parser(code)

    with collecting_all_the_time(), ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


def test_threads_may_parse_at_once() -> None:
    by_four_threads(parse)


def test_threads_may_read_literals_at_once() -> None:
    by_four_threads(lambda code: literal(code.partition(" == ")[2]))


def test_what_is_parsed_is_what_ast_parses() -> None:
    assert [ast.dump(parse(code)) for code in CODES[:3]] == [ast.dump(ast.parse(code)) for code in CODES[:3]]
    assert literal(" [1, {'a': (2.5, None)}]") == [1, {"a": (2.5, None)}]
    with pytest.raises(SyntaxError):
        parse("assert (")
    with pytest.raises(ValueError, match="malformed"):
        literal("f(1)")
