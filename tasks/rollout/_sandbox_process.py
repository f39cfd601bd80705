"""One sandbox as a process of ours: started, asked, ended.

bubblewrap, or a plain process where it does not start -> process 1 (`_warm_worker`) -> request, reply
"""

from __future__ import annotations

import functools
import logging
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from data_contracts.errors import UserError
from tasks.rollout._bwrap import SandboxError, environment, obstacle, python_command, sandbox_command
from tasks.rollout._warm_io import read_frame, write_frame

_LOG = logging.getLogger(__name__)
_GRACE = 15.0
"""Seconds a sandbox may take on top of a call's limit, to fork and to empty the folder, before it counts as dead."""
_ROOT = str(Path(__file__).parents[2])
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-spawner")
"""One thread that lives as long as the process: --die-with-parent fires when the *thread* that started bwrap ends."""


class WorkerDied(Exception):
    """A sandbox is gone or silent."""


class Worker:
    """One sandbox with its process 1; not thread safe."""

    def __init__(self, name: str, *, preload: bool, require_isolation: bool) -> None:
        plain = _plain(require_isolation)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by `close`
        self._folder = tempfile.mkdtemp(prefix="ratchet-sandbox-") if plain else None
        self._process = _SPAWNER.submit(_spawn, preload, self._folder, self._log).result()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._replies = self._process.stdin.fileno(), self._process.stdout.fileno()
        try:
            read_frame(self._replies, _GRACE * 2)
        except (EOFError, TimeoutError) as error:
            self._kill()
            message = self._said() or str(error)
            self._release()
            raise SandboxError(f"a sandbox of the pool {name} did not start: {message}") from error

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            write_frame(self._requests, request)
            reply = read_frame(self._replies, request["seconds"] + _GRACE)
        except (OSError, EOFError, ValueError) as error:  # TimeoutError is an OSError
            raise WorkerDied(self._said() or str(error)) from error
        assert isinstance(reply, dict)
        return reply

    def close(self) -> None:
        """End it: process 1 leaves at the end of its input and all others go with it."""
        if self._process.stdin is None or self._process.stdin.closed:
            return
        self._process.stdin.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._kill()
        self._release()

    def _kill(self) -> None:
        self._process.kill()  # bwrap; --die-with-parent takes process 1 along
        self._process.wait()

    def _release(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)  # process 1 has removed it, where it lived to its end

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace").strip()[-500:]


def _plain(require_isolation: bool) -> bool:
    """Whether only a plain process is to be had here; raises UserError where that is not enough."""
    why = obstacle()
    if why and require_isolation:
        raise UserError(
            f"rollout.require_isolation is true, but there is no isolation here: {why}; or write"
            " rollout.require_isolation = false, where you trust what the agent may write"
        )
    if why:
        _announce(why)
    return bool(why)


@functools.cache
def _announce(why: str) -> None:
    _LOG.warning(
        "what the agent writes runs WITHOUT isolation, in plain processes of your user that can read your files, under"
        " limits on time, memory, processes, files and output, without sockets to the network: %s; write"
        " rollout.require_isolation = true to have this refused",
        why,
    )


def _spawn(preload: bool, folder: str | None, log: Any) -> subprocess.Popen[bytes]:
    options = ["--preload"] if preload else []
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "bufsize": 0}
    try:
        if folder is None:
            command = [*sandbox_command(), *python_command(), *options]
            return subprocess.Popen(command, start_new_session=True, **streams)
        variables = environment(folder) | {"TMPDIR": folder}
        command = [*python_command(_ROOT), *options]
        return subprocess.Popen(command, start_new_session=True, cwd=folder, env=variables, **streams)
    except OSError as error:
        raise SandboxError(f"a sandbox could not be started: {error}") from error
