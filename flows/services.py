"""The services a run leans on: a Prefect server, an MLflow server, a process that serves the deployments.

ratchet up  -> all three until Ctrl-C, found by others through <home>/services.json
ratchet run -> the Prefect server of `ratchet up`, else one of its own that ends with it, also on SIGKILL

All on 127.0.0.1, all telemetry off. Imports neither Prefect nor MLflow: their settings are read at import, so they
have to be in the environment first.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from data_contracts.errors import UserError
from models.mlflow_client import QUIET
from tasks import supervision
from tasks.supervision import HOST, Service, answers, free_port, log_end

START_SECONDS = 180.0
HEALTH = {"prefect": "/api/health", "mlflow": "/health"}
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
        url = running(home).get("prefect")
        if url is not None:
            os.environ["PREFECT_API_URL"] = f"{url}/api"
            meanwhile()
        else:
            port = free_port()
            url = f"http://{HOST}:{port}"
            os.environ["PREFECT_API_URL"] = f"{url}/api"
            stack.enter_context(prefect_server(home, UNSCHEDULED, port, meanwhile))
        yield url


@contextmanager
def prefect_server(
    home: Path, settings: Mapping[str, str], port: int = 0, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[Service]:
    """A Prefect server with its database in `home`, up and healthy; `meanwhile` is called while it comes up."""
    port = port or free_port()
    url = f"http://{HOST}:{port}"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
    extra = {**settings, "PREFECT_API_URL": f"{url}/api", "PREFECT_UI_API_URL": f"{url}/api"}
    with supervised("prefect", url, command, home, extra) as service:
        meanwhile()
        wait_healthy(service)
        yield service


@contextmanager
def mlflow_server(home: Path, port: int = 0) -> Iterator[Service]:
    """An MLflow server over the run's database and artifacts; `wait_healthy` waits for it."""
    port = port or free_port()
    url = f"http://{HOST}:{port}"
    store, artifacts = f"sqlite:///{home.resolve() / 'mlflow.db'}", home.resolve() / "mlartifacts"
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", store, "--artifacts-destination", artifacts.as_uri()]
    # its job runner, for evaluations started from the UI, would be seven more processes
    with supervised("mlflow", url, command, home, {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}) as service:
        yield service


def supervised(
    name: str, url: str, command: list[str], home: Path, extra: Mapping[str, str]
) -> AbstractContextManager[Service]:
    """`command` in the environment of a home, under a supervisor that ends it when this process is gone."""
    return supervision.supervised(name, url, command, home.resolve() / "logs", {**environment(home), **extra})


def wait_healthy(service: Service) -> None:
    """Wait until the service answers; raises RuntimeError with the end of its log when it ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while not answers(service.url + HEALTH[service.name]):
        if not service.alive or time.monotonic() > deadline:
            happened = "did not start" if service.alive else f"ended with exit code {service.process.returncode}"
            raise RuntimeError(f"the {service.name} server {happened}; {log_end(service.log)}")
        time.sleep(0.1)


def running(home: Path) -> dict[str, str]:
    """Addresses of the services that `ratchet up` runs for this home, by name; those that answer."""
    file = home / "services.json"
    if not file.is_file():
        return {}
    addresses: dict[str, str] = json.loads(file.read_text())["addresses"]
    return {name: url for name, url in addresses.items() if answers(url + HEALTH[name])}


@contextmanager
def announced(home: Path, services: list[Service]) -> Iterator[None]:
    """Tell other commands of this home where the services are, for as long as they run."""
    file = home / "services.json"
    temporary = file.with_suffix(".tmp")
    state = {"pid": os.getpid(), "addresses": {service.name: service.url for service in services}}
    temporary.write_text(json.dumps(state))
    os.replace(temporary, file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def stop_asked() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set from now on, instead of ending this process."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def stay(stop: threading.Event, services: Sequence[Service]) -> None:
    """Wait for `stop`; raises RuntimeError with the end of its log when a service ends by itself."""
    while not stop.wait(1.0):
        ended = next((service for service in services if not service.alive), None)
        if ended is not None:
            raise RuntimeError(f"{ended.name} ended by itself; {log_end(ended.log)}")


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
