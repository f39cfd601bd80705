"""A process that has imported MLflow but opened nothing: it forks one child for each command and reports how it ended.

stdin: a JSON list of commands, which run at the same time -> stdout: a JSON list of {"exit": int, "result": ...}

Importing MLflow costs seconds; forking the importer makes a test with forty killed processes possible.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from models.mlflow_client import QUIET

os.environ.update(QUIET)

import mlflow.store.model_registry.sqlalchemy_store
import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
from mlflow import MlflowClient

from models.registry import Registry
from models.registry_journal import Journal
from models.release import Bundle

WRITES = (
    "create_run",
    "log_text",
    "log_artifacts",
    "set_terminated",
    "create_registered_model",
    "create_model_version",
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def open_registry(command: dict[str, Any]) -> Registry:
    return Registry(command["uri"], Path(command["artifacts"]), command["name"])


def die_at_write(number: int, when: str) -> None:
    """Make the `number`-th call that writes to MLflow the last thing this process does."""
    count = iter(range(1, 1000))

    def wrap(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            fatal = next(count) == number
            if fatal and when == "before":
                die()
            result = original(*args, **kwargs)
            if fatal:
                die()
            return result

        return call

    for name in WRITES:
        setattr(MlflowClient, name, wrap(getattr(MlflowClient, name)))


def die_at_event(event: str, when: str) -> None:
    """Die before or after this journal event is written."""
    append = Journal.append

    def call(self: Journal, move: Any, written: Any) -> None:
        if written == event and when == "before":
            die()
        append(self, move, written)
        if written == event:
            die()

    Journal.append = call  # type: ignore[method-assign]


def publish(command: dict[str, Any]) -> Any:
    registry = open_registry(command)
    if "die_at" in command:
        die_at_write(command["die_at"], command["when"])
    return registry.publish(Bundle.model_validate(command["bundle"]))


def move(command: dict[str, Any]) -> Any:
    registry = open_registry(command)
    if "die_at" in command:
        die_at_event(command["die_at"], command["when"])
    if command["kind"] == "rollback":
        return registry.rollback(who="test", why="fault").version
    return registry.promote(command["version"], who="test", why="fault").version


def meet(folder: Path, number: int) -> None:
    """Wait until `number` processes are ready."""
    (folder / f"ready-{os.getpid()}").touch()
    while len(list(folder.glob("ready-*"))) < number:
        time.sleep(0.01)


def promoter(command: dict[str, Any]) -> Any:
    """Promote one release after another until both readers are done; returns how often."""
    registry = open_registry(command)
    folder, versions, count = Path(command["folder"]), command["versions"], 0
    meet(folder, 4)
    while len(list(folder.glob("done-*"))) < 2:
        registry.promote(versions[count % len(versions)], who=str(os.getpid()), why="race")
        time.sleep(0.02)
        count += 1
    return count


def reader(command: dict[str, Any]) -> Any:
    """Read `command["reads"]` times, and on until two releases were seen; counts reads that mix releases."""
    registry = open_registry(command)
    folder, reads, mixed, seen = Path(command["folder"]), 0, 0, set()
    meet(folder, 4)
    while reads < command["reads"] or len(seen) < 2:
        registry._releases.clear()
        release = registry.champion()
        assert release is not None
        loaded = {role: (path / "model.safetensors").read_text().split("|") for role, path in release.paths.items()}
        told = {role: digest for role, (_, digest) in loaded.items()}
        mixed += len({mark for mark, _ in loaded.values()}) != 1 or release.digests != told
        seen.add(release.version)
        reads += 1
    (folder / f"done-{os.getpid()}").touch()
    return {"reads": reads, "mixed": mixed, "seen": len(seen)}


ACTIONS = {"publish": publish, "move": move, "promoter": promoter, "reader": reader}


def start(command: dict[str, Any]) -> tuple[int, int]:
    """Fork a child for one command; returns its pid and the pipe its result comes through."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid:
        os.close(send)
        return pid, receive
    code = 1
    try:
        os.write(send, json.dumps(ACTIONS[command["do"]](command)).encode())
        code = 0
    finally:
        sys.stderr.flush()
        if code:
            import traceback

            traceback.print_exc()
        os._exit(code)


def finish(pid: int, receive: int) -> dict[str, Any]:
    with os.fdopen(receive, "rb") as pipe:
        text = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"exit": code, "result": json.loads(text) if text else None}


def main() -> None:
    for line in sys.stdin:
        running = [start(command) for command in json.loads(line)]
        print(json.dumps([finish(*child) for child in running]), flush=True)


if __name__ == "__main__":
    main()
