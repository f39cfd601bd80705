"""The services a run leans on: a Prefect server, an MLflow server, a process that serves the deployments.

ratchet up  -> all three until Ctrl-C, found by others through <home>/services.json
ratchet run -> the Prefect server of `ratchet up`, else one of its own that ends with it, also on SIGKILL

All on 127.0.0.1, all telemetry off. Imports neither Prefect nor MLflow: their settings are read at import, so they
have to be in the environment first.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from data_contracts.errors import UserError
from models.mlflow_client import QUIET
from tasks._supervisor import GRACE_SECONDS
from tasks.keeper import LOOK_SECONDS, Keeper, Patience
from tasks.supervision import HOST, Plan, answers, free_port

HEALTH = {"prefect": "/api/health", "mlflow": "/health", "gateway": "/health"}
"""Where a service answers once it is up."""

NO_TELEMETRY = {
    **QUIET,
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
}
"""What every process that we start has in its environment: code and data stay on the machine."""

CLIENT = {
    "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # progress bars and tables are ours; the UI has the logs
    "TQDM_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "60",  # flows/automations.py: a run that sends none any more has crashed
}

UNSCHEDULED = {
    f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false"
    for name in (
        "SCHEDULER", "LATE_RUNS", "FOREMAN", "TRIGGERS", "PAUSE_EXPIRATIONS",
        "CANCELLATION_CLEANUP", "REPOSSESSOR", "CLEANUP_RECONCILER",
    )
}  # fmt: skip
"""A run's own server records; it has nothing to schedule."""


def environment(home: Path) -> dict[str, str]:
    """Settings of every process of a home: where Prefect's and MLflow's state lies, telemetry off."""
    home = home.resolve()
    return {
        **NO_TELEMETRY,
        **CLIENT,
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home / 'prefect.db'}",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    }


@contextmanager
def prefect_api(home: Path, meanwhile: Callable[[], None] = lambda: None) -> Iterator[str]:
    """A Prefect API for this process, in its environment; to be entered before Prefect is imported.

    `meanwhile` is called while a server of our own comes up; it may import Prefect. Yields the UI's address.
    """
    os.environ.update(environment(home))
    with ExitStack() as stack:
        url, keeper = running(home).get("prefect"), None
        if url is None:
            keeper = stack.enter_context(Keeper(tell, Patience(ends=1)))
            url = keeper.keep(prefect_plan(home, free_port(), UNSCHEDULED)).plan.url
        os.environ["PREFECT_API_URL"] = f"{url}/api"
        meanwhile()
        if keeper is not None:
            keeper.wait_up(threading.Event())
        yield url


def prefect_plan(home: Path, port: int, settings: Mapping[str, str]) -> Plan:
    """A Prefect server with its database in `home`."""
    url = f"http://{HOST}:{port}"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
    extra = {**settings, "PREFECT_API_URL": f"{url}/api", "PREFECT_UI_API_URL": f"{url}/api"}
    return plan_of("prefect", url, command, home, extra)


def mlflow_plan(home: Path, port: int) -> Plan:
    """An MLflow server over the home's database and artifacts."""
    store, artifacts = f"sqlite:///{home.resolve() / 'mlflow.db'}", home.resolve() / "mlartifacts"
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", store, "--artifacts-destination", artifacts.as_uri()]
    # its job runner, for evaluations started from the UI, would be seven more processes
    extra = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    return plan_of("mlflow", f"http://{HOST}:{port}", command, home, extra)


def gateway_plan(home: Path, recipe: Path, port: int) -> Plan:
    """The standing gateway of a recipe's agent; it answers once there is a champion."""
    command = [sys.executable, "-m", "flows.gateway", str(home.resolve()), str(recipe.resolve()), str(port)]
    return plan_of("gateway", f"http://{HOST}:{port}", command, home, {})


def deployments_plan(home: Path, recipe: Path, prefect: Plan) -> Plan:
    """The process that runs what the Prefect server schedules; it listens nowhere."""
    command = [sys.executable, "-m", "flows.serving", str(home.resolve()), str(recipe.resolve())]
    extra = {"PREFECT_API_URL": f"{prefect.url}/api", "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO"}
    return plan_of("deployments", "", command, home, extra)


def plan_of(name: str, url: str, command: list[str], home: Path, extra: Mapping[str, str]) -> Plan:
    """`command` in the environment of a home."""
    variables = {**environment(home), **extra}
    return Plan(name, url, command, home.resolve() / "logs", variables, HEALTH.get(name, ""))


def tell(line: str) -> None:
    """What a service does is said beside what the command prints."""
    print(line, file=sys.stderr)


def running(home: Path) -> dict[str, str]:
    """Addresses of the services that `ratchet up` keeps for this home, by name; those that answer."""
    return {name: url for name, url in _addresses(home).items() if answers(url + HEALTH[name])}


def _addresses(home: Path) -> dict[str, str]:
    file = home / "services.json"
    found: dict[str, str] = json.loads(file.read_text())["addresses"] if file.is_file() else {}
    return found


@contextmanager
def announced(home: Path, plans: Sequence[Plan]) -> Iterator[None]:
    """Tell other commands of this home where the services are, for as long as they are kept up."""
    from data_contracts.store import write_json

    file = home / "services.json"
    write_json(file, {"pid": os.getpid(), "addresses": {plan.name: plan.url for plan in plans if plan.url}})
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


@contextmanager
def sole_keeper(home: Path) -> Iterator[bool]:
    """Whether this process is the one that keeps the services of a home up; the system frees it when that dies."""
    with (home / "services.lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def let_go(home: Path, seconds: float = 3 * GRACE_SECONDS) -> None:
    """Wait for what a killed keeper of this home has left to be gone: its services end by themselves."""
    deadline = time.monotonic() + seconds
    while any(map(_listens, _addresses(home).values())) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)


def _listens(url: str) -> bool:
    address = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((address.hostname or HOST, address.port or 80)) == 0


def stop_asked() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set from now on, instead of ending this process."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def port_or_free(port: int, what: str) -> int:
    """The port, if it is free. A port somebody else holds is a UserError; 0 takes any."""
    if port == 0:
        return free_port()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UserError(f"port {port} for {what} is taken: give another one, or 0 for any free one.") from error
    return port
