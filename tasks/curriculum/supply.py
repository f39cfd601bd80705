"""Where the problems of a run come from: the generator, or a pack that is split in two.

sizes + seed -> source file;  admitted pack -> train.jsonl, heldout.jsonl;  held-out problems -> those to evaluate on
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from data_contracts.errors import UserError
from data_contracts.records import HORIZONS, Horizon, Problem
from data_contracts.store import write_atomic
from tasks.curriculum.generator.problems import generate
from tasks.curriculum.overlap import family

HELDOUT_SHARE = 0.25
"""Share of a pack that is held out, where no pack of held-out problems is given."""


def write_generated(path: Path, split: Literal["train", "heldout"], sizes: Mapping[Horizon, int], seed: int) -> int:
    """Write `sizes` generated problems per horizon to `path` (.jsonl), whole or not at all; how many they are."""
    wanted = [horizon for horizon in HORIZONS if sizes.get(horizon)]
    problems = [problem for horizon in wanted for problem in generate(seed, split, horizon, sizes[horizon])]
    write_problems(path, problems)
    return len(problems)


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    """Write problems to `path` (.jsonl), whole or not at all."""
    write_atomic(path, "".join(problem.model_dump_json() + "\n" for problem in problems))


def is_held_out(problem: Problem, share: float = HELDOUT_SHARE) -> bool:
    """Which side of a pack a problem is on: by a hash of what it asks for, so that it never changes sides.

    Problems with one solution, as mutants of one module are, are on one side.
    """
    digest = hashlib.sha256(f"heldout:{family(problem)}".encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


def split_pack(problems: Sequence[Problem]) -> tuple[list[Problem], list[Problem]]:
    """(to train on, held out). Raises UserError when one side would be empty."""
    held = [problem for problem in problems if is_held_out(problem)]
    train = [problem for problem in problems if not is_held_out(problem)]
    if not held or not train:
        families = len({family(problem) for problem in problems})
        raise UserError(
            f"a pack with {len(problems)} usable problems and {families} different solutions is "
            "too small to hold some out: add problems, or give curriculum.heldout_pack."
        )
    return train, held


def to_evaluate(problems: Sequence[Problem], sizes: Mapping[Horizon, int]) -> list[str]:
    """Ids of the first problems of each horizon, as many as `sizes` asks for."""
    chosen: list[str] = []
    for horizon in HORIZONS:
        ids = [problem.id for problem in problems if problem.horizon == horizon]
        chosen += ids[: sizes.get(horizon, 0)]
    return chosen
