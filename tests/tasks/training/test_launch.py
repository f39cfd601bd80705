"""The command line of the ranks, on one machine and on several; DeepSpeed's launcher run for real on this one."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from data_contracts.errors import UserError
from data_contracts.store import write_segments
from models.policy import Base
from tasks.training.client import Trainer
from tasks.training.config import TrainingConfig
from tasks.training.launch import launch_command

WORKER = ["--base", "base", "--config", "/run/trainer.json", "--socket", "/tmp/s"]


def _command(**settings: object) -> list[str]:
    return launch_command("base", Path("/run/trainer.json"), Path("/tmp/s"), TrainingConfig(**settings))


def _hosts(folder: Path, text: str) -> str:
    (folder / "hosts").write_text(text)
    return str(folder / "hosts")


def test_one_process_needs_no_launcher() -> None:
    assert _command() == [sys.executable, "-m", "tasks.training.worker", *WORKER]


def test_processes_of_this_machine_are_run_by_torchrun() -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    assert _command(processes=4) == [sys.executable, *torchrun, "-m", "tasks.training.worker", *WORKER]


def test_machines_are_run_by_deepspeeds_launcher(tmp_path: Path) -> None:
    hosts = _hosts(tmp_path, "# the cluster\nnode-a slots=8\n\nnode-b slots=8  # new\nnode-c slots=4\n")
    launcher = [
        "-m", "deepspeed.launcher.runner", f"--hostfile={tmp_path / 'hosts'}", "--num_nodes=2", "--num_gpus=8",
        "--master_addr=node-a", "--master_port=29511", "--no_local_rank", "--module", "tasks.training.worker",
    ]  # fmt: skip
    command = _command(hostfile=hosts, nodes=2, processes=8, master_port=29511)
    assert command == [sys.executable, *launcher, *WORKER]
    assert "--no_ssh_check" in _command(hostfile=hosts, nodes=1, processes=8)


def test_the_launcher_understands_the_command(tmp_path: Path) -> None:
    """DeepSpeed's own reading of it: 2 machines of 8 ranks, which pdsh would be asked to start."""
    import base64
    import json

    from deepspeed.launcher import runner
    from deepspeed.launcher.multinode_runner import PDSHRunner

    hosts = _hosts(tmp_path, "node-a slots=8\nnode-b slots=8\nnode-c slots=8\n")
    arguments = runner.parse_args(_command(hostfile=hosts, nodes=2, processes=4)[3:])
    pool = runner.fetch_hostfile(arguments.hostfile)
    active = runner.apply_num_nodes_and_gpus(
        runner.parse_inclusion_exclusion(pool, "", ""), arguments.num_nodes, arguments.num_gpus
    )
    world = runner.encode_world_info(active)
    assert json.loads(base64.urlsafe_b64decode(world)) == {"node-a": [0, 1, 2, 3], "node-b": [0, 1, 2, 3]}
    command, _, _ = PDSHRunner(arguments, world).get_cmd({}, active)
    assert command[command.index("-w") + 1] == "node-a,node-b"
    assert command[-7:] == ["tasks.training.worker", *WORKER]
    assert {"--node_rank=%n", "--master_addr=node-a", "--module", "--no_local_rank"} <= set(command)


@pytest.mark.parametrize(
    ("text", "settings", "says"),
    [
        ("node-a slots=8\n", {"nodes": 2}, r"hosts lists 1 machines: set training\.nodes to that"),
        ("node-a slots=1\n", {"processes": 2}, r"node-a has fewer slots than training\.processes = 2"),
        ("node-a slots=2\nnode-a slots=2\n", {}, r"hosts:2: 'node-a slots=2': write `name slots=4`, each machine once"),
        ("node-a\n", {}, r"hosts:1: 'node-a': write `name slots=4`"),
        ("localhost slots=1\nnode-b slots=1\n", {"nodes": 2}, "do not find this one as localhost: write its name"),
    ],
)
def test_a_hostfile_that_does_not_serve_is_refused(
    tmp_path: Path, text: str, settings: dict[str, int], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        _command(hostfile=_hosts(tmp_path, text), **settings)


def test_a_hostfile_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match=r"training\.hostfile = 'nowhere' is no file: list your machines there"):
        _command(hostfile="nowhere")


def test_machines_without_a_list_are_refused() -> None:
    with pytest.raises(ValueError, match="write for example hostfile = 'hostfile'"):
        TrainingConfig(nodes=2)


@pytest.mark.slow
def test_deepspeeds_launcher_trains_what_one_process_trains(
    base: Base, policy_zero: Path, sample_segments, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    write_segments(tmp_path / "b.parquet", sample_segments(6))
    common = {"learning_rate": 1e-3, "warmup_steps": 0, "minibatches": 2, "threads": 1, "micro_batch_tokens": 60}
    launched = {"hostfile": _hosts(tmp_path, "localhost slots=2\n"), "processes": 2, "master_port": port}
    states = []
    for name, settings in (("one", {}), ("launched", launched)):
        folder = tmp_path / name
        with Trainer(base.path, folder, TrainingConfig(**common, **settings)) as trainer:
            trainer.load(policy_zero)
            trainer.train(tmp_path / "b.parquet", None, folder / "policy-00001", folder / "c", 0)
            log = trainer.log_path.read_text()
        assert ("rank 1" in log) == (name == "launched")
        states.append(load_file(folder / "policy-00001" / "adapter_model.safetensors"))
    assert max(float((states[0][name] - states[1][name]).abs().max()) for name in states[0]) < 1e-5
