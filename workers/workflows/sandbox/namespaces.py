"""Namespaces of the kernel around a command: a file system of its own, no network, no other process, no rights.

Part of the warden, a program without rftd's packages: imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct

# As mypy reads it; the module typing takes longer to import than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    Job = dict[str, Any]

INNER: Final = "/sandbox"
"""The command's folder within namespaces."""
INNER_UID: Final = 1000
"""The command's user within namespaces made by root."""

_CALLS: Final = {"x86_64": (56, 155, 126), "aarch64": (220, 41, 91)}
"""Numbers of the system calls clone, pivot_root and capset by machine."""
_MOUNT_SETATTR: Final = 442
_NAMESPACES: Final = 0x10000000 | 0x20000000 | 0x00020000 | 0x08000000 | 0x04000000
"""Flags of clone: user, PID, mount, IPC and UTS namespaces."""
_NEW_NET: Final = 0x40000000
_RDONLY: Final = 1
_NOSUID: Final = 2
_NODEV: Final = 4
_REMOUNT: Final = 32
_BIND: Final = 4096
_REC: Final = 16384
_PRIVATE: Final = 1 << 18
_AT_RECURSIVE: Final = 0x8000
_AT_FDCWD: Final = -100
PDEATHSIG: Final = 1
DUMPABLE: Final = 4
_CAPBSET_DROP: Final = 24
_KEEP_CAPS: Final = 8
_AMBIENT: Final = 47
_READ_SEARCH: Final = 2
CHILD_SUBREAPER: Final = 36
_NO_NEW_PRIVS: Final = 38
_CAPS_VERSION: Final = 0x20080522
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x41
# Keeps Python's lock during a call: the child of clone continues in Python without waiting for a thread.
_LIBC: Final = ctypes.PyDLL(None, use_errno=True)


def control(option: int, argument: int) -> int:
    """Calls prctl, and returns its status."""
    return int(_LIBC.prctl(option, argument, 0, 0, 0))


def checked(status: int, action: str) -> int:
    """Returns the status of a system call; raises OSError, with the action, if it failed."""
    if status == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")
    return status


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Mounts a file system, or changes flags of a mount. Raises OSError."""
    texts = [None if text is None else text.encode() for text in (source, target, kind)]
    data = None if options is None else options.encode()
    checked(_LIBC.mount(*texts, ctypes.c_ulong(flags), data), f"mount {target}")


def show(root: str, path: str, *, at: str | None = None, writable: bool = False) -> None:
    """Makes a path visible below a new root, read-only unless `writable`; links are copied, missing paths skipped."""
    target = root + (at or path)
    if os.path.lexists(target) or not os.path.lexists(path):
        return  # within a folder already visible
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(path, target, None, _BIND | _REC)
    if not writable:
        attributes = struct.pack("QQQQ", _RDONLY | _NOSUID, 0, 0, 0)
        checked(
            _LIBC.syscall(_MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, attributes, len(attributes)),
            f"make {path} read-only",
        )


def build_root(job: Job) -> None:
    """Replaces the file system by the readable paths, a /proc and a /dev of its own, and the run's folder."""
    root = job["folder"] + "/root"
    os.umask(0o022)  # workers close all that they make to others, and the command is another user
    mount(None, "/", None, _REC | _PRIVATE)
    mount("sandbox", root, "tmpfs", _NOSUID | _NODEV, "mode=0755,size=4m")
    for path in job["readable"]:
        show(root, path)
    show(root, job["folder"] + "/work", at=INNER, writable=True)
    show(root, job["folder"] + "/tmp", at="/tmp", writable=True)  # noqa: S108 - the sandbox's own
    for name in ("null", "zero", "full", "random", "urandom"):
        show(root, f"/dev/{name}", writable=True)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1")):
        os.symlink(target, f"{root}/dev/{name}")
    os.symlink("/proc/self/fd/2", root + "/dev/stderr")
    os.symlink("/tmp", root + "/dev/shm")  # noqa: S108
    os.mkdir(root + "/proc")
    mount("proc", root + "/proc", "proc", _NOSUID | _NODEV)
    os.chdir(root)
    checked(_LIBC.syscall(_calls()[1], b".", b"."), "change the root")
    checked(_LIBC.umount2(b".", 2), "leave the old root")
    os.chdir("/")
    mount(None, "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)


def _calls() -> tuple[int, int, int]:
    machine = os.uname().machine
    if machine not in _CALLS:
        raise OSError(f"no system calls known for {machine}")
    return _CALLS[machine]


def listeners(ports: list[int]) -> list[socket.socket]:
    """Starts the loopback of a new network namespace, and listens on its ports."""
    opened = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        fcntl.ioctl(plain, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
    for port in ports:
        listener = socket.socket()
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
        opened.append(listener)
    return opened


def clone(*, network: bool) -> int:
    """Forks into namespaces of its own; returns the child's pid, and 0 in the child. Raises OSError."""
    flags = _NAMESPACES | signal.SIGCHLD | (0 if network else _NEW_NET)
    return checked(int(_LIBC.syscall(_calls()[0], ctypes.c_ulong(flags), 0, 0, 0, 0)), "make namespaces")


def map_users(pid: int, uid: int) -> None:
    """Maps users of a new namespace: of root, root and the run's user; of anybody else, the caller alone."""
    if os.geteuid() == 0:
        users = groups = f"0 0 1\n{INNER_UID} {uid} 1\n"
    else:
        with open(f"/proc/{pid}/setgroups", "w") as file:
            file.write("deny")
        users = f"0 {os.geteuid()} 1\n"
        groups = f"0 {os.getegid()} 1\n"
    for name, text in (("uid_map", users), ("gid_map", groups)):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(text)


def limit(job: Job) -> None:
    """Sets the limits of the kernel for this process and its children; lower ones of the caller remain."""
    bounds = job["bounds"]
    wanted = [
        (resource.RLIMIT_CORE, 0, 0),
        # Above the bounds: the warden sees and names an excess, before the kernel's errors confuse the command.
        (resource.RLIMIT_DATA, 2 * bounds["memory_bytes"], 2 * bounds["memory_bytes"]),
        (resource.RLIMIT_FSIZE, bounds["disk_bytes"] + 65536, bounds["disk_bytes"] + 65536),
        (resource.RLIMIT_NPROC, bounds["processes"] + 2, bounds["processes"] + 2),
    ]
    if bounds.get("cpu_s"):
        seconds = max(1, round(bounds["cpu_s"]))
        wanted.append((resource.RLIMIT_CPU, seconds, seconds + 1))
    for kind, soft, hard in wanted:
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            hard = min(hard, most)
            soft = min(soft, hard)
        resource.setrlimit(kind, (soft, hard))


def drop_rights(uid: int, *, reads_all: bool) -> None:
    """Gives up all capabilities for ever, and becomes the user `uid`; -1 keeps the user.

    With `reads_all`, a process of root remains able to read every file: programs often lie in root's own folders.
    """
    remaining = 1 << _READ_SEARCH if reads_all and uid >= 0 else 0
    for capability in range(64):
        if not remaining >> capability & 1 and control(_CAPBSET_DROP, capability) == -1:
            break
    if remaining:
        control(_KEEP_CAPS, 1)
    if uid >= 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _LIBC.syscall(_calls()[2], struct.pack("Ii", _CAPS_VERSION, 0), struct.pack("6I", *[remaining] * 3, 0, 0, 0))
    if remaining:
        _LIBC.prctl(_AMBIENT, 2, _READ_SEARCH, 0, 0)
    checked(control(_NO_NEW_PRIVS, 1), "give up new rights")
