"""What a sandbox's process 1 reads and writes: frames on a pipe, and the folder of a call. Standard library only."""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import PurePosixPath
from typing import Any

HOME = os.environ.get("TMPDIR", "/tmp")
"""All that a call may write to. Only a plain process, which has no /tmp of its own, is given TMPDIR."""
FOLDER = os.path.join(HOME, "work")
"""Where a call's files lie inside: always the same path, so that tracebacks are the same from run to run."""


def read_frame(fd: int, seconds: float | None = None) -> Any:
    """The next object on `fd`; EOFError at its end, TimeoutError after `seconds`."""
    deadline = None if seconds is None else time.monotonic() + seconds
    size = int.from_bytes(_read_exactly(fd, 4, deadline), "big")
    return json.loads(_read_exactly(fd, size, deadline))


def write_frame(fd: int, content: object) -> None:
    """Write one object, length first."""
    data = json.dumps(content).encode()
    view = memoryview(len(data).to_bytes(4, "big") + data)
    while view:
        view = view[os.write(fd, view) :]


def _read_exactly(fd: int, size: int, deadline: float | None) -> bytes:
    data = bytearray()
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    while len(data) < size:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        if not poller.poll(left):
            raise TimeoutError("no answer in time")
        chunk = os.read(fd, size - len(data))
        if not chunk:
            raise EOFError("the other end is closed")
        data += chunk
    return bytes(data)


def write_files(files: dict[str, str]) -> None:
    os.mkdir(FOLDER)
    for path, text in files.items():
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts:
            raise ValueError(f"path {path!r} leaves the folder")
        os.makedirs(os.path.join(FOLDER, *parts[:-1]), exist_ok=True)
        with open(os.path.join(FOLDER, path), "wb") as file:
            file.write(text.encode("utf-8", "surrogatepass"))


def clear() -> None:
    """Bring HOME back to how it was before the call, its own marks included; raises OSError where it cannot be."""
    _empty(HOME)
    for name in os.listxattr(HOME):
        os.removexattr(HOME, name)
    os.chmod(HOME, 0o700)
    os.utime(HOME, (0, 0))


def _empty(folder: str) -> None:
    """Remove what a call left; folders are made readable first, links are never followed."""
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, 0o700)
            _empty(entry.path)
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)
