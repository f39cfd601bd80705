"""Rules of the table problems.

frame of problems -> one bool a row
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from data_contracts.rules._rows import each


def solution_files_known(frame: pd.DataFrame) -> np.ndarray:
    """The reference solution of a repair problem changes only files that the problem has."""
    rows = zip(frame["solution"], frame["files"], frame["environment"], strict=True)
    return each(place != "repair" or set(solution) <= set(files) for solution, files, place in rows)


def solution_changes_files(frame: pd.DataFrame) -> np.ndarray:
    """The reference solution differs from the untouched files."""
    pairs = zip(frame["solution"], frame["files"], strict=True)
    return each(any(files.get(name) != text for name, text in solution.items()) for solution, files in pairs)


def check_names_unique(frame: pd.DataFrame) -> np.ndarray:
    """Within `visible`, and within `hidden`, a check's name occurs once: a report names checks."""
    return each(
        all(len({check["name"] for check in checks}) == len(checks) for checks in pair)
        for pair in zip(frame["visible"], frame["hidden"], strict=True)
    )


def paths_stay_inside(frame: pd.DataFrame) -> np.ndarray:
    """Every path of a file is relative and has no `..`: it would be written outside the problem's folder."""
    columns = (frame[name] for name in ("files", "solution", "hidden_files", "control"))
    return each(all(_inside(path) for files in row for path in files) for row in zip(*columns, strict=True))


def _inside(path: str) -> bool:
    return bool(path) and not path.startswith("/") and ".." not in path.split("/")
