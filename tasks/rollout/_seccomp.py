"""The system calls that nothing in a sandbox may make: a filter that process 1 puts on itself and all that it forks.

table -> classic BPF program -> prctl(PR_SET_SECCOMP)

Namespaces hide what is outside. The filter is for what they leave: kernel objects that outlive a call and would carry
something to the next (System V and POSIX queues, keys), memory that no limit counts (memfd), and calls by which a
process changes another one of its user, which process 1 is (prlimit, priorities, affinity: they ask only for the same
user). Numbers are those of the kernel's tables `syscall_64.tbl` and `asm-generic/unistd.h`. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

# name: number on x86_64, on aarch64
_REFUSED = {
    "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "setpriority": (141, 140), "ioprio_set": (251, 30),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "syslog": (103, 116), "acct": (163, 89),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142),
    "quotactl": (179, 60),
}  # fmt: skip
_ON_ITSELF = {
    "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274),
}  # fmt: skip
"""Calls whose first argument names a process: they must say 0, the caller."""
_CLONE3 = (435, 435)
_SOCKET = (41, 198)
_AF_UNIX = 1
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables above, and what the kernel calls the architecture."""
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_X32 = 0x40000000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2


def install(*, network: bool) -> bool:
    """Put the filter on this process, for good; False on a machine that has no table here. Raises OSError.

    Without `network` sockets of the internet families are refused too: for where no network namespace is.
    """
    if platform.machine() not in _MACHINES:
        return False
    code = program(platform.machine(), network=network)
    kept = ctypes.create_string_buffer(code, len(code))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(kept)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER, head, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({arguments[0]}): {os.strerror(ctypes.get_errno())}")
    return True


def program(machine: str, *, network: bool) -> bytes:
    """The filter as the kernel takes it: 8 bytes an instruction."""
    column, architecture = _MACHINES[machine]
    code = [_do(_LOAD, _ARCHITECTURE), _do(_EQUAL, architecture, 1, 0), _do(_RETURN, _KILL), _do(_LOAD, _NUMBER)]
    if machine == "x86_64":
        code += [_do(_AT_LEAST, _X32, 0, 1), _no()]
    for numbers in _REFUSED.values():
        code += [_do(_EQUAL, numbers[column], 0, 1), _no()]
    code += [_do(_EQUAL, _CLONE3[column], 0, 1), _no(errno.ENOSYS)]  # its flags are out of sight; libc falls back
    for numbers in _ON_ITSELF.values():
        code += _only(numbers[column], 0)
    if not network:
        code += _only(_SOCKET[column], _AF_UNIX)
    return b"".join([*code, _do(_RETURN, _ALLOW)])


def _only(number: int, value: int) -> list[bytes]:
    """Allow a call where the low half of its first argument is `value`, refuse it elsewhere."""
    test = [_do(_LOAD, _ARGUMENT), _do(_EQUAL, value, 1, 0), _no(), _do(_RETURN, _ALLOW)]
    return [_do(_EQUAL, number, 0, len(test)), *test]


def _no(error: int = errno.EPERM) -> bytes:
    return _do(_RETURN, _REFUSE | error)


def _do(code: int, operand: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", code, then, otherwise, operand)
