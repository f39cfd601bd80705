"""`ratchet contracts` and `ratchet quarantine`, by their front door."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from data_contracts.contract import FOLDER, TABLES
from data_contracts.errors import UserError
from data_contracts.quarantine import Quarantine
from data_contracts.verdicts import Rejection
from flows.cli import app


def ratchet(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(result.exception, UserError):
        raise result.exception
    return result.exit_code, result.output


def test_check_tells_what_does_not_hold(tmp_path):
    (tmp_path / "problems.jsonl").write_text('{"id": "a"}\n')
    code, said = ratchet("contracts", "check", tmp_path)
    assert code == 1
    assert "problems: 0 of 0 rows hold" in said
    assert "a: line: " in said and "problems.jsonl:1: " in said
    with pytest.raises(UserError, match="does not exist"):
        ratchet("contracts", "check", tmp_path / "none")
    with pytest.raises(UserError, match="use one of problems, "):
        ratchet("contracts", "check", tmp_path, "--table", "rollouts")


def test_diff_refuses_a_break_whose_version_stays(tmp_path):
    text = (FOLDER / "turns.odcs.yaml").read_text()
    path = tmp_path / "turns.odcs.yaml"
    path.write_text(text.replace("validValues: [stop, length]", "validValues: [stop, length, tool]"))
    code, said = ratchet("contracts", "diff", "turns", path)
    assert code == 1
    assert "major: finish_reason may be tool" in said
    assert "refused: turns 1.0.0: finish_reason may be tool, so it must be at least 2.0.0" in said
    assert ratchet("contracts", "diff", "segments@1.1.0", "segments@1.2.0") == (
        0,
        "minor: column experts is new\nminor: column experts_per_token is new\nminor: experts_distinct is checked\n"
        "minor: experts_in_range is checked\nminor: experts_recorded is checked\nminor: routing_whole is checked\n"
        "segments 1.2.0 may follow 1.1.0\n",
    )


def test_docs_show_every_contract(tmp_path):
    code, _ = ratchet("contracts", "docs", "--out", tmp_path / "contracts.html")
    page = (tmp_path / "contracts.html").read_text()
    assert code == 0
    assert all(f'<h2 id="{table}">' in page for table in TABLES)
    assert "one of completed, out_of_turns" in page
    assert "logprob_near_last" in page


def test_quarantine_lists_shows_and_says_why_not(tmp_path):
    quarantine = Quarantine(tmp_path / "run-1" / "quarantine")
    quarantine.add("problems", [(Rejection(None, "p-1", "flaky", "two verdicts"), {"id": "p-1"})], "run-1", 0)
    (row,) = quarantine.dropped()
    assert ratchet("quarantine", "list", "--home", tmp_path) == (
        0,
        f"{row.id}  run-1  00000  problems  p-1  flaky\n",
    )
    assert ratchet("quarantine", "list", "--home", tmp_path, "--rule", "other") == (0, "")
    code, said = ratchet("quarantine", "show", row.id[:6], "--home", tmp_path)
    assert code == 0 and '"reason": "two verdicts"' in said
    code, said = ratchet("quarantine", "release", row.id, "--why", "mended", "--home", tmp_path)
    assert code == 1 and "not released" in said
    with pytest.raises(UserError, match="no row is named so"):
        ratchet("quarantine", "show", "zzz", "--home", tmp_path)
