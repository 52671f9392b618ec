"""`ProcessSandbox`: commands as processes of this machine, each beside a warden.

In namespaces, the command sees the system and Python read-only, its own folder, its own processes, and no network. As a
plain process it shares all of these with its user: with a user of its own, if the explorer is root.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rftd.ops import limits
from rftd.ops.decoding import converted
from rftd.ops.errors import RolloutError
from rftd.ops.logs import logger
from rftd.workers.workflows.sandbox.namespaces import INNER
from rftd.workers.workflows.sandbox.run_folder import WORK, RunFolder, remove_left_folders
from rftd.workers.workflows.sandbox.sandbox import SandboxCommand, SandboxReport

if TYPE_CHECKING:
    import psutil


_ABOVE_RFTD: Final = Path(__file__).parents[4]
"""The folder with the package rftd, for the import of the warden."""
# Without running the packages' own modules, and what they import.
_START: Final = """
import sys
for depth in range(4, len(sys.argv) + 1):
    name = ".".join(sys.argv[3:depth])
    package = sys.modules[name] = type(sys)(name)
    package.__path__ = ["/".join([sys.argv[2], *sys.argv[3:depth]])]
from rftd.workers.workflows.sandbox.forking import serve
serve(int(sys.argv[1]))
"""


class WardenServer:
    """The process forking wardens: started when first needed, and again after its death."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._explorer = 0

    def start(self, descriptors: tuple[int, int, int]) -> None:
        """Starts a warden with this input, output and lock, all copied. Blocks. Raises RolloutError."""
        with self._lock:
            for _ in range(2):
                if self._channel is None or self._explorer != os.getpid():
                    self._open()
                assert self._channel is not None
                try:
                    socket.send_fds(self._channel, [b"w"], descriptors)
                    return
                except OSError:  # killed
                    self._close()
        raise RolloutError("the process that starts sandboxes ends at once", fix="look for a lack of memory")

    def _open(self) -> None:
        from rftd.workers.hosts.leftovers import MARK  # late, as psutil

        # The mark lets the daemon end a warden whose explorer died with it; the library path is that of this Python.
        names = (MARK, "LD_LIBRARY_PATH")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START, str(os.getpid()), str(_ABOVE_RFTD), *__package__.split(".")],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in names if name in os.environ},
                start_new_session=True,
            )
        self._channel = ours
        self._explorer = os.getpid()
        atexit.register(self._close)

    def _close(self) -> None:
        if self._explorer != os.getpid():  # a fork of the explorer
            return
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


WARDENS: Final = WardenServer()
"""The server of this process, for all of its sandboxes."""


SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts", "/etc/mime.types", "/etc/protocols"),
)
"""Readable within namespaces, besides Python itself."""
NAME_VARIABLE: Final = "RFTD_SANDBOX"
"""Variable with the run's name, by which processes are found whose warden was killed."""


class ProcessSandbox:
    """Implements `Sandbox` by processes on this machine, in namespaces unless the kernel allows none."""

    def __init__(self, isolation: str = "auto") -> None:
        """`isolation` is `namespaces`, `process`, or `auto`: namespaces where possible."""
        self._isolation = "namespaces" if isolation == "auto" else isolation
        self._may_fall_back = isolation == "auto"
        self._cleaned = False

    async def run(self, command: SandboxCommand) -> SandboxReport:
        """Runs a command; see `Sandbox.run`."""
        if not self._cleaned:
            self._cleaned = True
            await asyncio.to_thread(remove_left_folders)
        returned = await self._attempt(command)
        if "unavailable" in returned and self._may_fall_back:
            # For all later runs: the kernel does not change its mind.
            self._isolation = "process"
            logger().warning("sandbox.no_namespaces", reason=returned["unavailable"], isolation="process")
            returned = await self._attempt(command)
        if "unavailable" in returned:
            raise RolloutError(
                f"this machine has no namespaces for a sandbox: {returned['unavailable']}",
                fix="allow unprivileged user namespaces, or use isolation docker",
            )
        return converted(returned, SandboxReport)

    async def _attempt(self, command: SandboxCommand) -> dict[str, Any]:
        isolated = self._isolation == "namespaces"
        job = job_of(command, self._isolation, environ=_environment(command, isolated), readable=self._python)
        return await watched(job, command.folder)

    @cached_property
    def _python(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(
                path for prefix in (sys.base_prefix, sys.prefix) for path in (os.path.realpath(prefix), prefix)
            )
        )


def job_of(
    command: SandboxCommand, isolation: str, *, environ: dict[str, str], readable: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Returns the job of a warden for a command, with the command's input written into its folder."""
    bounds = command.bounds
    if command.input:
        command.folder.set_input(command.input)
    return {
        "isolation": isolation,
        "command": command.words,
        "environ": environ,
        "folder": str(command.folder.path),
        "readable": (*SYSTEM, *readable, *command.readable),
        "network": command.network,
        "ports": command.ports,
        "uid": command.folder.uid if os.geteuid() == 0 else -1,
        "bounds": {
            "wall_s": bounds.wall_s,
            "cpu_s": bounds.cpu_s,
            "memory_bytes": bounds.memory_mib * limits.MIB,
            "disk_bytes": bounds.disk_mib * limits.MIB,
            "processes": bounds.processes,
            "output_bytes": bounds.output_mib * limits.MIB,
        },
        "limits": True,
        "tail_bytes": command.tail_bytes,
        "warm": command.warm and isolation == "namespaces",
        "input": bool(command.input),
        "after": (),
        "parent": os.getpid(),
    }


async def watched(job: dict[str, Any], folder: RunFolder) -> dict[str, Any]:
    """Runs a job beside a warden, and returns its report; cancelling ends the command with all its processes."""
    warden = _Warden(job, folder)
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[dict[str, Any]] = loop.create_future()

    def settle(report: dict[str, Any] | None, error: Exception | None) -> None:
        if not ended.done():
            if error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(report or {})

    def work() -> None:
        report: dict[str, Any] | None = None
        failure: Exception | None = None
        try:
            report = warden.run()
        except Exception as error:
            failure = error
        # The loop may be closed by now, together with the waiting caller.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, report, failure)

    thread = threading.Thread(target=work, name="sandbox", daemon=True)
    thread.start()
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        warden.stop()
        # The folder is removed next: nothing may run in it by then. Killing takes milliseconds.
        await asyncio.wait({ended})
        if not ended.cancelled():
            ended.exception()  # retrieved, or asyncio would log it
        raise


class _Warden:
    """The process beside one command."""

    def __init__(self, job: dict[str, Any], folder: RunFolder) -> None:
        self._job = job
        self._folder = folder
        self._stopping = threading.Lock()
        self._stopped = False
        self._input: FileIO | None = None

    def run(self) -> dict[str, Any]:
        """Runs the command, and returns the report. Blocks."""
        if os.geteuid() == 0 and self._job["uid"] >= 0:
            self._folder.give(self._job["uid"])
        job_out, job_in = os.pipe()
        report_out, report_in = os.pipe()
        with open(report_out, "rb") as reports:
            try:
                WARDENS.start((job_out, report_in, self._folder.lock))
            finally:
                os.close(job_out)
                os.close(report_in)
                with self._stopping:
                    self._input = FileIO(job_in, "wb")
            with suppress(BrokenPipeError, ValueError):  # killed, or stopped
                self._input.write(msgspec.json.encode(self._job) + b"\n")
            if self._stopped:
                self.stop()
            report = reports.read()
        self.stop()
        if report.endswith(b"\n"):
            return dict(msgspec.json.decode(report))
        end_marked(self._folder.path.name)
        raise RolloutError("the warden of the sandbox was killed")

    def stop(self) -> None:
        """Ends the command by ending the warden's input."""
        with self._stopping:
            self._stopped = True
            if self._input is not None:
                self._input.close()


def end_marked(name: str) -> None:
    """Kills the processes of a run whose warden was killed. Blocks for milliseconds."""
    import psutil  # late, for a check of an experiment imports this module without running anything

    for _ in range(100):
        marked = [process for process in psutil.process_iter() if _has_mark(process, name)]
        if not marked:
            return
        for process in marked:
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(marked, timeout=0.1)


def _has_mark(process: psutil.Process, name: str) -> bool:
    import psutil

    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(NAME_VARIABLE) == name
    except psutil.Error:
        return False


def _environment(command: SandboxCommand, isolated: bool) -> dict[str, str]:
    from rftd.workers.hosts.leftovers import MARK

    folder = command.folder.path
    environ = {
        "PATH": os.defpath if not isolated else "/usr/local/bin:/usr/bin:/bin",
        "HOME": INNER if isolated else str(folder / WORK),
        "TMPDIR": "/tmp" if isolated else str(folder / "tmp"),  # noqa: S108 - the sandbox's own
        "LANG": "C.UTF-8",
        **command.environ,
        NAME_VARIABLE: folder.name,
    }
    if not isolated and MARK in os.environ:
        # For the worst case, the death of explorer and warden: the daemon then finds what is left.
        environ[MARK] = os.environ[MARK]
    return environ
