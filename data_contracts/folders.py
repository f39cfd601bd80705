"""Text files of a problem that lie in a folder of the pack instead of on its line.

{"folder": "vat/project"} -> {"files": {"prices.py": "..."}}
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

FOLDERS = {
    "folder": "files",
    "hidden_folder": "hidden_files",
    "control_folder": "control",
    "solution_folder": "solution",
}
"""What names a folder on a pack's line, and the field that its files go to."""
LARGEST_FILE = 256 * 2**10
LARGEST_FOLDER = 4 * 2**20
"""Bytes; a problem's files are copied into a sandbox at each call."""
LEFT_OUT = frozenset({"__pycache__", ".git", ".hg", ".svn", ".venv", "node_modules", ".pytest_cache", ".mypy_cache"})


def with_folders(fields: dict[str, Any], pack: Path) -> dict[str, Any]:
    """The fields of a line with every folder read into its field; ValueError with the remedy where that fails."""
    read = dict(fields)
    for name, field in FOLDERS.items():
        if name not in fields:
            continue
        if field in fields:
            raise ValueError(f"{name}: {field} is given as well: keep one of them")
        given = read.pop(name)
        if not isinstance(given, str) or not given:
            raise ValueError(f"{name}: {given!r} is no path: write a folder relative to the pack")
        read[field] = _files(name, given, pack)
    return read


def _files(name: str, given: str, pack: Path) -> dict[str, str]:
    """What `read_folder` gives for a folder inside the pack."""
    root = (pack / given).resolve()
    if not root.is_relative_to(pack.resolve()):
        raise ValueError(f"{name}: {given!r} leaves the pack: put the folder into it")
    if not root.is_dir():
        raise ValueError(f"{name}: {given!r} is no folder in {pack}: write its path relative to the pack")
    return read_folder(root, f"{name}: {given}")


def read_folder(root: Path, label: str = "") -> dict[str, str]:
    """Contents by path relative to the folder, sorted; version control and caches are left out.

    ValueError, which begins with `label` (default: the folder), for what is no text or too large.
    """
    label = label or str(root)
    if not root.is_dir():
        raise ValueError(f"{label} is no folder: give one")
    paths = sorted(_walk(root))
    if not paths:
        raise ValueError(f"{label} holds no file: put the problem's files into it")
    contents: dict[str, str] = {}
    left = LARGEST_FOLDER
    for path in paths:
        inner = path.relative_to(root).as_posix()
        contents[inner] = text = _text(f"{label}/{inner}", path)
        left -= len(text.encode())
        if left < 0:
            raise ValueError(f"{label} holds more than {LARGEST_FOLDER >> 20} MiB: leave out what is not used")
    return contents


def _walk(root: Path) -> list[Path]:
    found = []
    for folder, inner, names in os.walk(root):
        inner[:] = [each for each in inner if each not in LEFT_OUT]
        found += [Path(folder, each) for each in (*names, *(each for each in inner if Path(folder, each).is_symlink()))]
    return found


def _text(label: str, path: Path) -> str:
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{label} is no regular file: replace it by a copy of what it stands for")
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{label} is larger than {LARGEST_FILE >> 10} KiB: leave it out or make it smaller")
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{label} is no UTF-8 text (byte {error.start + 1}): leave it out") from error
    if "\0" in text:
        raise ValueError(f"{label} is binary (a NUL byte): leave it out")
    return text
