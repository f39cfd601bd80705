"""What a prompt looks like and what it is about, in figures that need no model.

text -> symbols, variety;  text -> hashed words -> fixed random projection -> embedding

An embedding of our own base would move with the base, and needs it in memory beside the one that serves: hashing with
a fixed projection is the same in every process and release, costs milliseconds for a window, and tells another subject
from the same one, which is all that the distance is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

DIMENSIONS = 64
_HASHED = 2**14


def symbol_share(text: str) -> float:
    """Characters that are neither letters nor blanks, as a share: code and data have many."""
    return sum(not (c.isalpha() or c.isspace()) for c in text) / max(len(text), 1)


def word_variety(text: str) -> float:
    """Distinct words over all words."""
    words = text.split()
    return len(set(words)) / max(len(words), 1)


def embed(texts: Sequence[str]) -> NDArray[np.float64]:
    """Embeddings [N, DIMENSIONS] of length 1 (a text without words: 0)."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hashed = HashingVectorizer(n_features=_HASHED, ngram_range=(1, 2), token_pattern=r"\w+")
    points = np.asarray(hashed.transform(texts) @ _projection())
    return points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)


@cache
def _projection() -> NDArray[np.float64]:
    """Random and always the same: distances survive it (Johnson and Lindenstrauss)."""
    return np.random.default_rng(0).standard_normal((_HASHED, DIMENSIONS)) / DIMENSIONS**0.5
