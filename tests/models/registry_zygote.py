"""A process that has MLflow warm but nothing open: it forks one child for each command and reports how it ended.

stdin: a JSON list of commands, which run at the same time -> stdout: a JSON list of {"exit": int, "result": ...}

Importing MLflow and its first use cost seconds: forking the one that paid makes a hundred killed processes possible.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from models.mlflow_client import QUIET

os.environ.update(QUIET)
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import mlflow.models
import mlflow.store.artifact.local_artifact_repo
import mlflow.store.model_registry.sqlalchemy_store
import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
import promoters
from mlflow import MlflowClient
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

from models.registry import Registry
from models.registry_journal import Journal, champions
from models.trial import Trial

WRITES = (
    "create_run", "log_text", "log_dict", "log_artifact", "log_artifacts", "set_terminated", "delete_run",
    "create_registered_model", "create_model_version", "delete_model_version",
    "set_registered_model_alias", "set_registered_model_tag", "delete_registered_model_tag", "set_model_version_tag",
)  # fmt: skip
NO_LINE = 7
"""Exit code of a child that was to die within a line, at a write that is none."""

BY = {"who": "test", "why": "fault"}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def open_registry(command: dict[str, Any]) -> Registry:
    return Registry(command["uri"], Path(command["artifacts"]), command["name"])


def die_at(number: int, when: str) -> None:
    """Make the `number`-th write to MLflow, its artifacts or the journal the last thing this process does.

    Before it, after it, or (in the journal) in the middle of the line.
    """
    writes = count(1)
    for name in WRITES:
        _wrap(MlflowClient, name, writes, number, when)
    _wrap(LocalArtifactRepository, "delete_artifacts", writes, number, when)
    _wrap(Journal, "append", writes, number, when)


def _wrap(owner: type, name: str, writes: Iterator[int], number: int, when: str) -> None:
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        fatal = next(writes) == number
        if fatal and when == "before":
            die()
        if fatal and when == "torn":
            if name != "append":
                os._exit(NO_LINE)
            args[0].path.parent.mkdir(exist_ok=True)
            with args[0].path.open("ab") as journal:
                journal.write(b'{"event": "done", "wri')
            die()
        result = original(*args, **kwargs)
        if fatal:
            die()
        return result

    setattr(owner, name, call)


def act(registry: Registry, command: dict[str, Any]) -> Any:
    """One operation of the registry."""
    match command["op"]:
        case "publish":
            return registry.publish(promoters.offer(Path(command["offered"]), command["mark"]))
        case "promote":
            return registry.promote(command["version"], **BY).version
        case "rollback":
            return registry.rollback(from_version=command["version"], **BY).version
        case "trial":
            trial = Trial.model_validate(command["trial"]) if command["trial"] else None
            return registry.set_trial(trial, **BY)
        case "quarantine":
            return registry.quarantine_release(command["version"], **BY)
        case "lift":
            return registry.lift_quarantine(command["version"], **BY)
        case "collect":
            return list(registry.collect(keep_last=1, keep_days=0, **BY).releases)


def operate(command: dict[str, Any]) -> Any:
    """One operation, or several one after another; with `die_at`, it dies on the way."""
    registry = open_registry(command)
    for operation in command.get("ops", ()):
        act(registry, command | operation)
    if "op" not in command:
        return None
    if "die_at" in command:
        die_at(command["die_at"], command["when"])
    return act(registry, command)


def settle(command: dict[str, Any]) -> Any:
    """What the next process finds: the state after it reconciled, and after the operation was done again."""
    registry = open_registry(command)
    registry.reconcile()
    found = state(registry, command)
    act(registry, command)
    return {"found": found, "then": state(registry, command), "again": len(registry.reconcile())}


def state(registry: Registry, command: dict[str, Any]) -> dict[str, Any]:
    """Everything that readers see, after it was checked that alias, journal, serving and files agree."""
    pointers, serving, moves = registry.pointers(), registry.serving(), registry.history()
    stack = champions(moves)
    assert pointers.champion == (stack[-1] if stack else None), "alias and journal"
    assert pointers.champion == (serving.champion.version if serving else None), "alias and serving"
    assert all(move.state in ("done", "undone") for move in moves), "nothing is pending"
    assert not serving or (serving.candidate is None) == (serving.trial is None)
    releases = registry.releases()
    for release in (serving.champion, serving.candidate) if serving else ():
        if release is not None:
            registry._reader.require_whole(release)
    return {
        "champion": pointers.champion,
        "trial": pointers.trial.model_dump() if pointers.trial else None,
        "quarantined": sorted(pointers.quarantined),
        "stack": stack,
        "releases": [release.version for release in releases],
        "components": {
            role: [int(version.version) for version in registry._reader.all_of(f"{registry.name}-{role}")]
            for role in ("base", "policy", "reward")
        },
        "folders": sum(any(run.glob("artifacts/**/*")) for run in Path(command["artifacts"]).iterdir()),
    }


def race(command: dict[str, Any]) -> Any:
    def open_one() -> Registry:
        return open_registry(command)

    versions = promoters.prepare(open_one, Path(command["offered"]))
    told = promoters.race(open_one, versions, command["seconds"], 2, 4)
    return {**told, "linked": promoters.linked(open_one())}


ACTIONS = {
    "operate": operate,
    "settle": settle,
    "race": race,
    "state": lambda command: state(open_registry(command), command),
}


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


def warm_up() -> None:
    """Everything once, on a registry of its own: what MLflow makes at first use, children need not make again."""
    with TemporaryDirectory() as home:
        registry = Registry(f"sqlite:///{home}/mlflow.db", Path(home) / "mlartifacts", "warm")
        promoters.prepare(lambda: registry, Path(home) / "offered")
        registry.collect(keep_last=1, keep_days=0, **BY)


def main() -> None:
    warm_up()
    for line in sys.stdin:
        running = [start(command) for command in json.loads(line)]
        print(json.dumps([finish(*child) for child in running]), flush=True)


if __name__ == "__main__":
    main()
