"""The services of a home: where they are, whose port is taken, what ended and why."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from flows import services
from flows.services import environment, free_port, let_go, port_or_free, sole_keeper


def test_one_process_keeps_the_services_of_a_home(tmp_path: Path) -> None:
    with sole_keeper(tmp_path) as first, sole_keeper(tmp_path) as second:
        assert first and not second
    with sole_keeper(tmp_path) as again:
        assert again


def test_services_of_a_killed_keeper_are_waited_for(tmp_path: Path) -> None:
    with socket.socket() as old:
        old.bind(("127.0.0.1", 0))
        old.listen()
        (tmp_path / "services.json").write_text(
            f'{{"addresses": {{"prefect": "http://127.0.0.1:{old.getsockname()[1]}"}}}}'
        )
        threading.Timer(1.0, old.close).start()
        started = time.monotonic()
        let_go(tmp_path)
    assert 1.0 <= time.monotonic() - started < 10.0


def test_services_that_do_not_answer_are_not_running(tmp_path: Path) -> None:
    assert services.running(tmp_path) == {}
    (tmp_path / "services.json").write_text(f'{{"addresses": {{"prefect": "http://127.0.0.1:{free_port()}"}}}}')
    assert services.running(tmp_path) == {}


def test_a_taken_port_is_the_users_to_mend() -> None:
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
