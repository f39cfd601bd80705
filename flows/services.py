"""The services a run leans on: a Prefect server, an MLflow server, a process that serves the deployments.

ratchet up  -> all three until Ctrl-C, found by others through <home>/services.json
ratchet run -> the Prefect server of `ratchet up`, else one of its own that ends with it, also on SIGKILL

All on 127.0.0.1, all telemetry off. Imports neither Prefect nor MLflow: their settings are read at import, so they
have to be in the environment first.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from data_contracts.errors import UserError
from models.mlflow_client import QUIET

HOST = "127.0.0.1"
START_SECONDS = 180.0
HEALTH = {"prefect": "/api/health", "mlflow": "/health"}
"""Where a service answers once it is up."""
SUPERVISOR = Path(__file__).with_name("_supervisor.py")

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


@dataclass(frozen=True, slots=True)
class Service:
    """A service under its supervisor."""

    name: str
    url: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


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
    """The address of a Prefect API for this process, in its environment; to be entered before Prefect is imported.

    `meanwhile` is called while a server of our own comes up; it may import Prefect.
    """
    os.environ.update(environment(home))
    with ExitStack() as stack:
        url = running(home).get("prefect")
        if url is not None:
            os.environ["PREFECT_API_URL"] = f"{url}/api"
            meanwhile()
        else:
            port = free_port()
            url = os.environ["PREFECT_API_URL"] = f"http://{HOST}:{port}/api"
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


@contextmanager
def supervised(name: str, url: str, command: list[str], home: Path, extra: Mapping[str, str]) -> Iterator[Service]:
    """`command` under a supervisor that ends it, with its children, when this process is gone."""
    log = home.resolve() / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    variables = {**os.environ, **environment(home), **extra, "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR), *command],
            stdin=subprocess.PIPE, stdout=output, stderr=output, env=variables, start_new_session=True,
        )  # fmt: skip
    try:
        yield Service(name, url, log, process)
    finally:
        if process.stdin is not None:
            process.stdin.close()  # what the supervisor waits for
        process.wait()


def wait_healthy(service: Service) -> None:
    """Wait until the service answers; raises RuntimeError with the end of its log when it ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while not answers(service.url + HEALTH[service.name]):
        if not service.alive or time.monotonic() > deadline:
            happened = "did not start" if service.alive else f"ended with exit code {service.process.returncode}"
            tail = "\n".join(service.log.read_text(errors="replace").splitlines()[-15:])
            raise RuntimeError(f"the {service.name} server {happened}; the end of {service.log}:\n{tail}")
        time.sleep(0.1)


def answers(address: str) -> bool:
    """Whether an address answers with success within two seconds. Proxies are not asked for loopback."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


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


def free_port() -> int:
    """A port that is free on loopback now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


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
