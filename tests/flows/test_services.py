"""The services of a home: where they are, whose port is taken, what ended and why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flows import services
from flows.services import environment, free_port, port_or_free, supervised, wait_healthy


def test_a_service_that_ends_at_once_is_said_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such table'); raise SystemExit(3)"]
    url = f"http://127.0.0.1:{free_port()}"
    with supervised("mlflow", url, command, tmp_path, {}) as service, pytest.raises(RuntimeError) as caught:
        wait_healthy(service)
    assert "exit code 3" in str(caught.value)
    assert "no such table" in str(caught.value)


def test_services_that_do_not_answer_are_not_running(tmp_path: Path) -> None:
    assert services.running(tmp_path) == {}
    (tmp_path / "services.json").write_text(f'{{"addresses": {{"prefect": "http://127.0.0.1:{free_port()}"}}}}')
    assert services.running(tmp_path) == {}


def test_a_taken_port_is_the_users_to_mend() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(services.UserError, match="is taken"):
            port_or_free(taken.getsockname()[1], "the Prefect UI")


def test_telemetry_is_off_in_everything_that_is_started(tmp_path: Path) -> None:
    variables = environment(tmp_path)
    assert variables["DO_NOT_TRACK"] == "1"
    assert variables["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert variables["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert variables["GX_ANALYTICS_ENABLED"] == "false"
