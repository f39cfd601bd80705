"""The flow's end of the socket that the trainer's rank 0 connects to: lines out, lines in.

A socket and not the process's own pipes, since launchers start ranks that inherit none (over ssh, for one). It lies in
a folder of its own that only this user may enter.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

_POLL_SECONDS = 0.2
_BLOCK = 1 << 16


class Channel:
    """Listens from the start; the first `send` waits for the other end. ConnectionError where that end is gone."""

    def __init__(self) -> None:
        # a socket's path may hold 107 bytes, less than a run's folder takes
        self._folder = Path(tempfile.mkdtemp(prefix="ratchet-"))
        self.path = self._folder / "trainer.sock"
        self.closed = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(1)
        self._listener.settimeout(_POLL_SECONDS)
        self._peer: socket.socket | None = None
        self._unread = b""

    def send(self, line: bytes, alive: Callable[[], bool]) -> None:
        """Write one line; `alive` says whether it is still worth waiting for the other end."""
        if self._peer is None:
            self._peer = self._accept(alive)
        self._peer.sendall(line)

    def read_line(self) -> bytes:
        """Wait for the next line, without its end; returns to the interpreter often, so that a cancel gets through."""
        while b"\n" not in self._unread:
            self._unread += self._read()
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def close(self) -> None:
        """Hang up and remove the socket, from any thread; who waits in `read_line` gets a ConnectionError."""
        self.closed = True
        if self._peer is not None:
            with contextlib.suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self, alive: Callable[[], bool]) -> socket.socket:
        while alive() and not self.closed:
            with contextlib.suppress(TimeoutError):
                peer, _ = self._listener.accept()
                peer.settimeout(_POLL_SECONDS)
                return peer
        raise ConnectionError("the trainer's process ended before it connected")

    def _read(self) -> bytes:
        assert self._peer is not None
        try:
            block = self._peer.recv(_BLOCK)
        except TimeoutError:
            return b""
        if not block:
            raise ConnectionError("the trainer's process hung up")
        return block
