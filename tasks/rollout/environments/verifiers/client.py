"""Our side of `host`: one process a taskset, one fork of it a connection.

Host(taskset).connect() -> Line -> ask(what, seconds, fields) -> reply
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from tasks.rollout._warm_io import read_frame, write_frame

START_SECONDS = 300.0
"""The package and a taskset may be imported for so long."""
_GRACE = 5.0
_FORK_SECONDS = 30.0
_WAITING = 512


class HostError(OSError):
    """The process of a taskset, or a fork of it, is gone: says nothing about the work."""


class TasksetError(Exception):
    """The taskset's own code failed; the message is its sentence."""


class Line:
    """A connection to a fork. It ends when this object is no longer used."""

    def __init__(self, host: Host, connection: socket.socket) -> None:
        self._host, self._fd = host, connection.fileno()
        self.close = weakref.finalize(self, connection.close)

    def ask(self, do: str, seconds: float, memory_mb: int, **fields: Any) -> Any:
        """Have something done within `seconds`, or the fork is killed: TimeoutError. Raises HostError, TasksetError."""
        started = time.monotonic()
        try:
            write_frame(self._fd, {"do": do, "seconds": seconds, "memory_mb": memory_mb, **fields})
            reply = read_frame(self._fd, seconds + _GRACE)
        except (EOFError, OSError) as error:
            self.close()
            if time.monotonic() - started >= seconds:
                raise TimeoutError(
                    f"{do} took longer than {seconds:g} s and was killed: raise limits.seconds"
                ) from error
            raise HostError(f"{do}: {self._host.last_word()}") from error
        if "error" in reply:
            raise TasksetError(reply["error"])
        return reply


class Host:
    """The process of one taskset; it starts with the first connection, and again where it died. Thread safe."""

    def __init__(self, taskset: str) -> None:
        self.taskset = taskset
        self._lock = threading.Lock()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the host
        self._folder = tempfile.TemporaryDirectory(prefix="ratchet-verifiers-")
        self._process: subprocess.Popen[bytes] | None = None

    def connect(self) -> Line:
        """A fork of its own. Raises HostError with the reason where the taskset cannot be imported."""
        with self._lock:
            fresh = self._process is None or self._process.poll() is not None
            if fresh:
                self._start()
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(self._address)
                read_frame(connection.fileno(), START_SECONDS if fresh else _FORK_SECONDS)
            except (EOFError, OSError) as error:
                connection.close()
                raise HostError(f"taskset {self.taskset!r} did not start: {self.last_word()}") from error
        return Line(self, connection)

    def close(self) -> None:
        """End the process. Its forks end with their connections, at the latest when their time is up."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._process = None
            self._log.close()
            self._folder.cleanup()

    def last_word(self) -> str:
        """The last line that the process or a fork wrote to stderr."""
        size = os.fstat(self._log.fileno()).st_size
        lines = os.pread(self._log.fileno(), 4096, max(0, size - 4096)).decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it died without a word")

    @property
    def _address(self) -> str:
        return str(Path(self._folder.name) / "socket")

    def _start(self) -> None:
        Path(self._address).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address)
            listener.listen(_WAITING)
            listener.setblocking(False)
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tasks.rollout.environments.verifiers.host",
                    self.taskset,
                    str(listener.fileno()),
                ],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[listener.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
            )
