"""The trainer's own process: commands in, replies out through the flow's socket, one JSON line each.

{"id": 3, "command": "score", "arguments": {}} -> {"id": 3, "reply": {}} or {"id": 3, "error": {"kind", "message"}}

Only what a user or a diverged run causes is an error reply; anything else ends the process, with its traceback in the
log, since the state it leaves is unknown. The process ends when the socket or its parent is gone, busy or idle: every
file it writes appears by a rename, so that is safe at any moment. (PR_SET_PDEATHSIG would fire at the end of the
*thread* that started the worker, and flows start it from a thread.)
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import socket
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

_PARENT_CHECK_SECONDS = 0.5

Commands = queue.SimpleQueue[str]


def main() -> None:
    """Serve commands until the socket ends."""
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    arguments = _arguments()
    rank = int(os.environ.get("RANK", "0"))
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format=f"%(asctime)s rank {rank} %(name)s: %(message)s", force=True
    )
    logging.getLogger(__name__).info("worker %d starts", os.getpid())
    commands: Commands = queue.SimpleQueue()
    replies = _connect(arguments.socket, commands) if rank == 0 else None
    _serve(arguments.base, arguments.config, commands, replies)


def _serve(base: str, config_file: Path, commands: Commands, replies: IO[str] | None) -> None:
    from data_contracts.errors import UserError
    from tasks.training.config import TrainingConfig

    config = TrainingConfig.model_validate_json(config_file.read_bytes())
    _use_threads(config.threads)
    from tasks.training import distributed
    from tasks.training.reports import TrainingDiverged
    from tasks.training.service import TrainingService

    service: TrainingService | None = None
    distributed.start_process_group()
    while True:
        request = distributed.share(_next(commands) if distributed.rank() == 0 else None)
        try:
            service = service or TrainingService(base, config)
            answer = {"reply": service.call(request["command"], request["arguments"])}
        except (UserError, TrainingDiverged) as error:
            answer = {"error": {"kind": type(error).__name__, "message": str(error)}}
        if replies is not None:
            replies.write(json.dumps({"id": request["id"], **answer}) + "\n")
            replies.flush()


def _next(commands: Commands) -> dict[str, Any]:
    return json.loads(commands.get())


def _use_threads(threads: int) -> None:
    import torch

    if threads:
        torch.set_num_threads(threads)


def _connect(path: Path, commands: Commands) -> IO[str]:
    """Put what comes through the flow's socket into `commands`; return where the replies go."""
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(str(path))
    threading.Thread(
        target=_read_commands, args=(channel.makefile("r", encoding="utf-8"), commands), daemon=True
    ).start()
    return channel.makefile("w", encoding="utf-8")


def _read_commands(source: IO[str], commands: Commands) -> None:
    for line in source:
        commands.put(line)
    os._exit(0)


def _leave_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    os._exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="the trainer's worker process; started by tasks.training.client")
    parser.add_argument("--base", required=True, help="folder of the base model")
    parser.add_argument("--config", required=True, type=Path, help="file of the TrainingConfig as JSON")
    parser.add_argument("--socket", required=True, type=Path, help="where the flow listens; rank 0 connects to it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
