"""The command line that starts the trainer's ranks.

one process -> the worker; more on this machine -> torchrun; a hostfile -> DeepSpeed's launcher, over ssh where it must

Every rank reads the same base, configuration, batches and checkpoints by the same paths: with several machines these
lie on storage that all of them share. Rank 0 runs on the first machine of the hostfile, which is the flow's own, since
it is spoken to through a socket of this machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from data_contracts.errors import UserError
from tasks.training.config import TrainingConfig

_WORKER = "tasks.training.worker"
_LOCAL = {"localhost", "127.0.0.1"}


def launch_command(base: Path | str, config_file: Path, socket: Path, config: TrainingConfig) -> list[str]:
    """Return the process that is or starts the ranks, as arguments; a hostfile that does not serve is a UserError."""
    worker = ["--base", str(base), "--config", str(config_file), "--socket", str(socket)]
    if config.hostfile is not None:
        return [sys.executable, *_deepspeed(Path(config.hostfile), config), _WORKER, *worker]
    if config.processes == 1:
        return [sys.executable, "-m", _WORKER, *worker]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={config.processes}"]
    return [sys.executable, *torchrun, "-m", _WORKER, *worker]


def _deepspeed(hostfile: Path, config: TrainingConfig) -> list[str]:
    hosts = list(read_hostfile(hostfile, config))[: config.nodes]
    options = [
        f"--hostfile={hostfile.resolve()}",
        f"--num_nodes={config.nodes}",
        f"--num_gpus={config.processes}",
        f"--master_addr={hosts[0]}",
        f"--master_port={config.master_port}",
        "--no_local_rank",
        "--module",
    ]
    # one machine needs no ssh, but DeepSpeed asks for it as soon as there is a hostfile
    return ["-m", "deepspeed.launcher.runner", *(["--no_ssh_check"] if len(hosts) == 1 else []), *options]


def read_hostfile(path: Path, config: TrainingConfig) -> dict[str, int]:
    """Return the slots of each machine (`name slots=4`, a line each), enough of both for the recipe, or a UserError."""
    if not path.is_file():
        raise UserError(f"training.hostfile = {str(path)!r} is no file: list your machines there, each `name slots=4`.")
    hosts: dict[str, int] = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        match line.partition("#")[0].split():
            case []:
                continue
            case [name, slots] if slots.removeprefix("slots=").isdigit() and name not in hosts:
                hosts[name] = int(slots.removeprefix("slots="))
            case _:
                raise UserError(f"{path}:{number}: {line.strip()!r}: write `name slots=4`, each machine once.")
    used = list(hosts.items())[: config.nodes]
    if len(used) < config.nodes:
        raise UserError(f"{path} lists {len(used)} machines: set training.nodes to that, or add some.")
    if few := [name for name, slots in used if slots < config.processes]:
        raise UserError(f"{path}: {few[0]} has fewer slots than training.processes = {config.processes}.")
    if config.nodes > 1 and (local := _LOCAL & {name for name, _ in used}):
        raise UserError(f"{path}: other machines do not find this one as {local.pop()}: write its name there.")
    return hosts
