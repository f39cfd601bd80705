"""A process that has imported MLflow but opened nothing: it forks a child for each canary and reports how it ended.

stdin: a command as JSON -> stdout: {"exit": int, "writes": [...], "status": ..., "serving": ..., "moves": [...]}

A child runs a whole canary on traffic that it writes into the audit log itself, stage by stage, as the gateway would,
or dies (SIGKILL) just before one of the canary's writes.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
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
from models.trial import Trial
from tasks.canary import standing
from tasks.canary.audit import AuditLog, AuditRow
from tasks.canary.config import CanaryConfig
from tasks.canary.standing import Seat, begin, look
from tasks.canary.standing_status import Answer, all_statuses, write_answer
from tasks.paths import ServiceFolder

Command = dict[str, Any]
_EACH = 24


def prepare(command: Command) -> Any:
    """Three releases of an agent, the first one champion."""
    registry, home = open_registry(command), Path(command["home"])
    for mark in "abc":
        for role in ("base", "policy"):
            (home / "made" / mark / role).mkdir(parents=True)
            (home / "made" / mark / role / "model.safetensors").write_text(f"{mark}-{role}")
        registry.publish(
            Bundle(
                run_id=f"run-{mark}",
                base_path=home / "made" / mark / "base",
                base_digest="base",
                policy_path=home / "made" / mark / "policy",
                policy_version="policy-00001",
                policy_digest=mark,
                datasets={},
                contract_versions={},
                recipe={},
                code_revision="c",
            )
        )
    registry.promote(1, who="test", why="first")


def canary(command: Command) -> Any:
    """Begin, and look until the canary has ended or `looks` are over; tells where the canary wrote."""
    folder = ServiceFolder(Path(command["home"]), "agent")
    registry = open_registry(command)
    seat, config = Seat(registry, folder, "test"), CanaryConfig.model_validate(command["config"])
    writes = die_at_write(command.get("die_at"))
    status = begin(seat, 2, config)
    for number in range(command.get("looks", 60)):
        serving = registry.serving()
        if serving is not None and serving.trial is not None and command["traffic"]:
            traffic(folder, serving.trial, command["traffic"])
        if number == command.get("supersede_at"):
            newer = Trial(id="newer", champion=1, candidate=3, share=0.25, since="2026-01-01T00:00:00+00:00")
            registry.set_trial(newer, who="test", why="a newer candidate")
        if number == command.get("stop_at"):
            registry.set_trial(None, who="operator", why="stopped by hand")
        if answer := command.get("answers", {}).get(str(number)):
            write_answer(folder, status.id, Answer.model_validate(answer))
        status = look(seat, status, config)
        if status.ending is not None:
            break
    return {"writes": writes, "status": status.model_dump(mode="json")}


def traffic(folder: ServiceFolder, trial: Trial, chances: dict[str, float]) -> None:
    """Sessions of both arms in a stage, once each stage; `chances`: successes of each arm, in order."""
    mark = folder.root / f"traffic-{trial.id}-{trial.stage}"
    if mark.exists():
        return
    with AuditLog(folder.audit) as log:
        arms = {"champion": trial.champion, "candidate": trial.candidate}
        for (arm, version), number in itertools.product(arms.items(), range(_EACH)):
            if arm == "champion" and trial.share == 1:
                continue
            common = {
                "session": f"{trial.id}-{trial.stage}-{arm}-{number}",
                "release": f"release-{version}",
                "arm": arm,
            }
            common |= {"stage": trial.stage, "digest": "d", "turn": 0}
            log.append(AuditRow(kind="turn", latency=0.1, completion_tokens=5, prompt_tokens=9, **common))
            log.append(AuditRow(kind="outcome", outcome=number < chances[arm] * _EACH, **common))
    mark.touch()


def die_at_write(fatal: int | None) -> list[str]:
    """Make this process die before the `fatal`-th thing that the canary writes; returns what it wrote, as it does."""
    written: list[str] = []

    def counted(name: str, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            written.append(f"{name} {args[2]}" if name == "journal" else name)
            if len(written) == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        return call

    for name in ("set_registered_model_tag", "delete_registered_model_tag", "set_registered_model_alias"):
        setattr(MlflowClient, name, counted(name, getattr(MlflowClient, name)))
    Journal.append = counted("journal", Journal.append)  # type: ignore[method-assign]
    standing.write_status = counted("status", standing.write_status)
    return written


def seen(command: Command) -> Any:
    """What a fresh reader sees: the registry as it serves, its journal, the canaries' statuses."""
    registry = open_registry(command)
    serving = registry.serving()
    assert serving is not None
    return {
        "champion": serving.champion.version,
        "trial": serving.trial.model_dump(mode="json") if serving.trial else None,
        "moves": [move.model_dump(mode="json") for move in registry.history()],
        "statuses": [s.model_dump(mode="json") for s in all_statuses(ServiceFolder(Path(command["home"]), "agent"))],
    }


def open_registry(command: Command) -> Registry:
    home = Path(command["home"])
    return Registry(f"sqlite:///{home}/mlflow.db", home / "mlartifacts", "agent", home=home)


ACTIONS = {"prepare": prepare, "canary": canary, "seen": seen}


def run(command: Command) -> dict[str, Any]:
    """The command in a child of its own."""
    receive, send = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.write(send, json.dumps(ACTIONS[command["do"]](command)).encode())
            code = 0
        finally:
            if code:
                import traceback

                traceback.print_exc()
            os._exit(code)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        text = pipe.read()
    return {"exit": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "result": json.loads(text) if text else None}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
