"""Packs: a bad line is rejected with file, line, field and remedy; its neighbours are read."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_contracts.errors import UserError
from data_contracts.problems import read_pack, write_pack
from data_contracts.records import Problem


def test_write_and_read(tmp_path, problem):
    problems = [problem("a"), problem("b", prompt="Zwölf\nLines  ", tags=())]
    file = write_pack(tmp_path / "pack", problems)
    assert read_pack(tmp_path / "pack") == (problems, [], {"a": 1, "b": 2})
    assert read_pack(file) == (problems, [], {"a": 1, "b": 2})


def test_a_missing_pack_is_the_users_error(tmp_path):
    with pytest.raises(UserError, match=r"problems.jsonl does not exist: give a folder with problems.jsonl"):
        read_pack(tmp_path)
    with pytest.raises(UserError, match=r"nowhere does not exist"):
        read_pack(tmp_path / "nowhere")


def broken(problem: Problem, **changes: object) -> str:
    fields = {**problem.model_dump(mode="json"), **changes}
    return json.dumps({name: value for name, value in fields.items() if value != "DROP"})


CASES = [
    ({"prompt": "DROP"}, "prompt: missing: add it"),
    ({"promt": "x"}, "promt: unknown field: did you mean 'prompt'?"),
    ({"zzz": "x"}, "zzz: unknown field: remove it (known: id, prompt, files"),
    ({"hidden": []}, "hidden: empty: give at least one"),
    ({"hidden": [{"name": "h", "code": ""}]}, "hidden.0: give one of `code` (Python that raises), `command`"),
    ({"hidden": [{"nam": "h", "code": "x"}]}, "hidden.0.nam: unknown field: did you mean 'name'?"),
    ({"limits": {"turns": 0}}, "limits.turns: Input should be greater than or equal to 1, got 0: correct the value"),
    ({"limits": {"seconds": float("nan")}}, "limits.seconds: Input should be"),
    ({"horizon": "huge"}, "horizon: Input should be 'short', 'medium' or 'long', got 'huge': correct the value"),
    ({"id": "a b"}, "id: 'a b' is no name: use letters, digits, '.', '-' and '_'"),
    ({"files": {"../x": ""}}, "problem: file path '../x' leaves the problem's folder: write a relative path"),
    ({"solution": {"b.py": ""}}, "solution names files that the problem does not have: ['b.py']"),
    ({"id": "first"}, "id: 'first' is already used in line 1: give it another id"),
]


@pytest.mark.parametrize(("changes", "reason"), CASES)
def test_field_errors_name_file_line_field_and_remedy(tmp_path, problem, changes, reason):
    file = tmp_path / "problems.jsonl"
    first, last = problem("first"), problem("last")
    bad = broken(problem("bad"), **changes)
    file.write_text(f"{first.model_dump_json()}\n\n{bad}\n{last.model_dump_json()}\n", encoding="utf-8")
    reading = read_pack(file)
    assert reading.problems == [first, last]
    assert reading.lines == {"first": 1, "last": 4}
    (rejected,) = reading.rejected
    assert rejected.line == 3
    assert rejected.id == changes.get("id", "bad")
    assert rejected.reason.startswith(f"{file}:3: ")
    assert reason in rejected.reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id": ', "not JSON (Expecting value at column 8): write one object on one line"),
        (b"[1]", "a list and no object: write one object on one line"),
        (b'{"id": "\xff"}', "not UTF-8 at byte 9: save the file as UTF-8"),
        (b'{"id": "a", "id": "b"}', "id: given twice in one object: keep one"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_broken_lines(tmp_path, problem, line, reason):
    file = tmp_path / "problems.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + problem("a").model_dump_json().encode() + b"\r\n" + line)
    reading = read_pack(file)
    assert reading.problems == [problem("a")]
    assert [(item.line, item.id) for item in reading.rejected] == [(2, None)]
    assert f"{file}:2: {reason}" in reading.rejected[0].reason


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_read_without_a_crash(tmp_path, content):
    file = tmp_path / "problems.jsonl"
    file.write_bytes(content)
    reading = read_pack(file)
    assert reading.problems == []
    assert all(f"{file}:{item.line}: " in item.reason for item in reading.rejected)
