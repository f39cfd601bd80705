"""Training problems that would give a held-out one away, and problems that stand in a pack twice.

reference solutions -> normalised code -> n-grams -> similarity -> which training problems must go

Equal code after renaming (`generator.split.normalise`) counts as equal; other text is compared as it stands. Sharing
n-grams of 13 tokens is how contamination of evaluation sets is usually measured (Brown et al. 2020, appendix C); since
problems are short, the share is taken of both (Jaccard) and not of one.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from data_contracts.records import Problem
from tasks.curriculum.generator.split import normalise

NGRAM = 13
"""Tokens: words, and every sign by itself."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
Grams = frozenset[tuple[str, ...]]


class Overlap(NamedTuple):
    """A training problem, the held-out problem that it is most like, and how much: 0 to 1."""

    train: str
    heldout: str
    similarity: float


def overlaps(train: Sequence[Problem], heldout: Sequence[Problem], limit: float) -> list[Overlap]:
    """The training problems whose solution is at least `limit` like a held-out one, with the nearest."""
    others = [(problem.id, _grams(problem)) for problem in heldout]
    holding: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, (_, grams) in enumerate(others):
        for gram in grams:
            holding[gram].append(number)
    found = []
    for problem in train:
        own = _grams(problem)
        shared = Counter(number for gram in own for number in holding.get(gram, ()))
        nearest = max(((count / len(own | others[n][1]), -n) for n, count in shared.items()), default=(0.0, 0))
        if nearest[0] >= limit:
            found.append(Overlap(problem.id, others[-nearest[1]][0], nearest[0]))
    return found


def repeated(problems: Iterable[Problem]) -> dict[str, str]:
    """Problems that are another one again, by code and by all that decides: id to the first's id."""
    first: dict[str, str] = {}
    found = {}
    for problem in problems:
        rest = problem.model_dump_json(exclude={"id", "files", "solution", "horizon", "tags", "limits"})
        key = _digest("\0".join((_text(problem.files), _text(problem.solution), rest)))
        if first.setdefault(key, problem.id) != problem.id:
            found[problem.id] = first[key]
    return found


def family(problem: Problem) -> str:
    """The same for problems that ask for the same code, as mutants of one module do: they belong on one side."""
    return _digest(_text(problem.solution))


def _grams(problem: Problem) -> Grams:
    tokens = _TOKEN.findall(_text(problem.solution))
    return frozenset(tuple(tokens[start : start + NGRAM]) for start in range(max(1, len(tokens) - NGRAM + 1)))


def _text(files: dict[str, str]) -> str:
    return "\n".join(_normal(text) for _, text in sorted(files.items()))


def _normal(text: str) -> str:
    try:
        return normalise(text)
    except (SyntaxError, ValueError):  # no Python: as it stands
        return text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
