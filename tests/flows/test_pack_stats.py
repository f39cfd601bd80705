"""What a pack holds, in figures, without running anything."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from data_contracts.problems import write_pack
from data_contracts.store import append_jsonl
from flows.pack_stats import pack_stats, show_stats
from tasks.curriculum.generator import generate


def test_the_figures_of_a_generated_pack_with_a_copy_and_a_torn_line(tmp_path: Path) -> None:
    problems = [*generate(0, "train", "short", 3), *generate(0, "train", "medium", 2)]
    file = write_pack(tmp_path, [*problems, problems[0].model_copy(update={"id": "again"})])
    append_jsonl(file, '{"id": "torn"')
    found = pack_stats(tmp_path)
    assert (found["problems"], found["unreadable"], found["copies"], found["different_solutions"]) == (6, 1, 1, 5)
    assert found["environments"] == {"repair": 6}
    assert sum(found["tags"].values()) == sum(len(problem.tags) for problem in (*problems, problems[0]))
    short = found["horizons"]["short"]
    assert (short["problems"], short["visible_checks"], short["hidden_checks"], short["turns"]) == (4, 3, 6, 8)
    assert found["horizons"]["medium"]["tokens"] == 330
    shown = io.StringIO()
    show_stats(tmp_path, Console(file=shown, width=120))
    assert "copies: 1" in shown.getvalue() and "different solutions: 5" in shown.getvalue()
