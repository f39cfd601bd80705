"""Files of a problem from folders of its pack: read whole, or the line is rejected with what to mend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_contracts import folders
from data_contracts.problems import read_pack


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    for path, text in {"p/a.py": "x = 1\n", "p/in/b.txt": "zwölf\r\n", "h/t.py": "t\n", "s/a.py": "x = 2\n"}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(text.encode())
    return tmp_path


def line(pack: Path, **changes: Any) -> Path:
    fields = {
        "id": "w", "environment": "workspace", "prompt": "Fix it.", "folder": "p", "hidden_folder": "h",
        "control_folder": "h", "solution_folder": "s", "hidden": [{"name": "c", "command": ["python", "t.py"]}],
    }  # fmt: skip
    (pack / "problems.jsonl").write_text(json.dumps({k: v for k, v in (fields | changes).items() if v is not None}))
    return pack


def reason(pack: Path, **changes: Any) -> str:
    reading = read_pack(line(pack, **changes))
    (rejected,) = reading.rejected
    assert rejected.line == 1 and rejected.reason.startswith(f"{pack}/problems.jsonl:1: ")
    return rejected.reason.removeprefix(f"{pack}/problems.jsonl:1: ")


def test_folders_become_files(pack: Path) -> None:
    (pack / "p" / "__pycache__").mkdir()
    (pack / "p" / "__pycache__" / "a.pyc").write_bytes(b"\0\xff")
    (problem,) = read_pack(line(pack)).problems
    assert problem.files == {"a.py": "x = 1\n", "in/b.txt": "zwölf\r\n"}
    assert (problem.hidden_files, problem.control) == ({"t.py": "t\n"}, {"t.py": "t\n"})
    assert problem.solution == {"a.py": "x = 2\n"}
    assert problem.hidden[0].command == ("python", "t.py")


def test_a_problem_round_trips_through_a_pack_of_its_own(pack: Path) -> None:
    (problem,) = read_pack(line(pack)).problems
    (pack / "problems.jsonl").write_text(problem.model_dump_json())
    assert read_pack(pack).problems == [problem]


def test_what_is_wrong_is_said_with_its_remedy(pack: Path) -> None:
    (pack / "empty").mkdir()
    (pack / "binary").mkdir()
    (pack / "binary" / "logo.png").write_bytes(b"\x89PNG")
    (pack / "nul").mkdir()
    (pack / "nul" / "a").write_bytes(b"a\0")
    (pack / "link").mkdir()
    (pack / "link" / "passwd").symlink_to("/etc/passwd")
    assert (
        reason(pack, folder="nowhere")
        == f"folder: 'nowhere' is no folder in {pack}: write its path relative to the pack"
    )
    assert reason(pack, folder="../x") == "folder: '../x' leaves the pack: put the folder into it"
    assert reason(pack, folder="/etc") == "folder: '/etc' leaves the pack: put the folder into it"
    assert reason(pack, hidden_folder=3) == "hidden_folder: 3 is no path: write a folder relative to the pack"
    assert reason(pack, folder="empty") == "folder: empty holds no file: put the problem's files into it"
    assert reason(pack, folder="binary") == "folder: binary/logo.png is no UTF-8 text (byte 1): leave it out"
    assert reason(pack, folder="nul") == "folder: nul/a is binary (a NUL byte): leave it out"
    assert reason(pack, folder="link").startswith("folder: link/passwd is no regular file: replace it by a copy")
    assert reason(pack, files={"a.py": ""}) == "folder: files is given as well: keep one of them"
    assert reason(pack, folder=None, foldre="p").startswith(
        "files: missing: add it; foldre: unknown field: did you mean 'folder'"
    )
    assert reason(pack, hidden=[{"name": "c"}]).startswith(
        "hidden.0: give one of `code` (Python that raises), `command`"
    )
    assert "file path '../a' leaves the problem's folder" in reason(pack, hidden_folder=None, hidden_files={"../a": ""})


def test_folders_have_a_limit(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LARGEST_FILE", 8 * 2**10)
    (pack / "p" / "big").write_text("x" * (8 * 2**10 + 1))
    assert reason(pack) == "folder: p/big is larger than 8 KiB: leave it out or make it smaller"
    monkeypatch.setattr(folders, "LARGEST_FILE", 2**20)
    monkeypatch.setattr(folders, "LARGEST_FOLDER", 2**12)
    assert reason(pack).startswith("folder: p holds more than 0 MiB")
