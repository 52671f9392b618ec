"""`LocalServer`: a server in a folder of the local machine; `ServerProcess`: the process, found again by later
commands.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

import msgspec
import psutil

from rftd.daemon.cli.living_wait import LivingWait
from rftd.ops.decoding import json_decoder
from rftd.ops.errors import UnreachableError
from rftd.ops.own_folder import tighten

_INTERVAL_S: Final = 0.05
"""Seconds between two looks at a process."""
# The kernel counts start times in ticks of 10 ms; a reused pid is never as close.
_SAME_START_S: Final = 0.02
"""Tolerated difference in seconds between two readings of a start time."""
_KILL_TIMEOUT_S: Final = 30.0
"""Maximum seconds for a killed process to end."""
_TAIL_LINES: Final = 5
"""Number of last output lines shown in errors."""
_STOP_TIMEOUT_S: Final = 60.0
"""Seconds after which a server that does not shut down is killed."""


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """process.json: a pid with the start time of the process, to detect a reused pid."""

    pid: int
    """Id of the server's process."""
    process_start_s: float
    """Start time of the process, in seconds since 1970."""


class ServerProcess:
    """The server process of one folder, identified by process.json; output goes to output.log."""

    def __init__(self, folder: Path, name: str) -> None:
        """`name` is the server's name in messages."""
        self._file = folder / "process.json"
        """Path of process.json in the server's folder."""
        self.log_path = folder / "output.log"
        """File with the server's output."""
        self._name = name
        self._child: subprocess.Popen[bytes] | None = None
        """The process if started by this object; None otherwise."""

    @property
    def pid(self) -> int | None:
        """Process id of the server; None if not running, or if the pid was reused by another process."""
        process = self._find()
        return process.pid if process is not None else None

    def spawn(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        environ: Mapping[str, str],
        uid: int | None = None,
        gid: int | None = None,
    ) -> None:
        """Starts the process, as another user if `uid` and `gid` are set. Raises UnreachableError if not executable."""
        log = os.open(self.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            child = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A separate session: Ctrl-C in the terminal of `rftd stack up` reaches the whole process group, and the
                # servers should stay.
                start_new_session=True,
                cwd=cwd,
                env=dict(environ),
                user=uid,
                group=gid,
                extra_groups=None if gid is None else [],
            )
        except OSError as error:
            raise UnreachableError(f"cannot start {self._name}: {error}", where=arguments[0]) from error
        finally:
            os.close(log)
        self._child = child
        started = Started(pid=child.pid, process_start_s=psutil.Process(child.pid).create_time())
        temporary = self._file.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(started))
        temporary.replace(self._file)

    def wait_ready(self, ready: Callable[[], bool]) -> None:
        """Returns once `ready()`, with no time limit. Raises UnreachableError if the process ends first."""
        wait = LivingWait(f"{self._name} has not answered, whose output is in {self.log_path},")
        while not ready():
            wait.goes_on(self.living("while it started"))
            time.sleep(_INTERVAL_S)

    def living(self, when: str) -> int:
        """Returns the process id. Raises UnreachableError, with `when` and the last output lines, if the process has
        ended.
        """
        process = self._find()
        if process is None:
            raise UnreachableError(
                f"{self._name} ended {when}: {self._tail()}", where=str(self.log_path), fix="see the end of that file"
            )
        return process.pid

    def stop(self, number: signal.Signals, *, timeout_s: float) -> bool:
        """Sends signal `number`, and kills the process after `timeout_s`; False if no process was running."""
        process = self._find()
        if process is None:
            return False
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
        if not self._wait_ended(process, timeout_s):
            self.kill()
        return True

    def kill(self) -> bool:
        """Kills the process with all children by SIGKILL, like a power loss; False if no process was running."""
        process = self._find()
        if process is None:
            return False
        family = [process]
        with suppress(psutil.NoSuchProcess):
            process.suspend()  # prevents new children between the listing and the signals
            family += process.children(recursive=True)
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        for member in family:
            self._wait_ended(member, _KILL_TIMEOUT_S)
        return True

    def _find(self) -> psutil.Process | None:
        """Returns the running process named in process.json; None if it has ended or another has its pid."""
        if (child := self._child) is not None:
            child.poll()  # collects the exit status
        try:
            started = json_decoder(Started).decode(self._file.read_bytes())
            process = psutil.Process(started.pid)
            if abs(process.create_time() - started.process_start_s) > _SAME_START_S:
                return None
            # A zombie keeps pid and start time until the parent collects the status, but no longer runs.
            return process if process.status() != psutil.STATUS_ZOMBIE else None
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, psutil.Error):
            return None

    def _wait_ended(self, process: psutil.Process, timeout_s: float) -> bool:
        """Waits for the end of the process; a child through its Popen, the only collector of the status."""
        try:
            if (child := self._child) is not None and process.pid == child.pid:
                child.wait(timeout_s)
            else:
                process.wait(timeout_s)
        except (subprocess.TimeoutExpired, psutil.TimeoutExpired):
            return False
        return True

    def _tail(self) -> str:
        """Returns the last lines of the output in one line; empty if unreadable."""
        with suppress(OSError):
            lines = [line for line in self.log_path.read_text(errors="replace").splitlines() if line.strip()]
            return " | ".join(lines[-_TAIL_LINES:])[-1000:]
        return ""


class LocalServer(ABC):
    """A server started once, by any command, running until stopped."""

    stop_signal: ClassVar[signal.Signals]
    """Signal for an orderly shutdown."""

    def __init__(self, folder: Path, name: str) -> None:
        """`name` is the server's name in messages. Starts nothing."""
        self.folder = folder.absolute()
        """Folder of the server."""
        self._process = ServerProcess(self.folder, name)
        """Process of the server."""

    @property
    def pid(self) -> int | None:
        """Id of the server's main process; None if not running."""
        return self._process.pid

    @property
    def log_path(self) -> Path:
        """File with the server's whole output."""
        return self._process.log_path

    @property
    @abstractmethod
    def ready(self) -> bool:
        """True if the server answers and serves."""

    def close_to_others(self) -> None:
        """Closes the folder to other users: a broker's files contain every record."""
        tighten(self.folder)

    def start(self) -> None:
        """Starts the server and returns when clients are served; immediately if already running. Prepares a new folder
        first.

        Raises NotFoundError if programs are missing, UnreachableError if they cannot be downloaded or the server ends,
        and ConflictError if the port is in use.
        """
        self.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.close_to_others()
        # Two concurrent commands would both find no process and prepare or start the folder twice.
        with held(self.folder / "start.lock"):
            if self._process.pid is None:
                self._launch()
            self._process.wait_ready(lambda: self.ready)

    def check_alive(self) -> None:
        """Raises UnreachableError, with the last lines of output, if the server has ended unexpectedly."""
        self._process.living("by itself")

    def stop(self) -> bool:
        """Shuts the server down, with a deadline; False if it was not running."""
        return self._process.stop(self.stop_signal, timeout_s=_STOP_TIMEOUT_S)

    def kill(self) -> bool:
        """Kills the server with all children by SIGKILL, like a power loss; False if it was not running."""
        return self._process.kill()

    def remove(self) -> None:
        """Stops the server and deletes the folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def _launch(self) -> None:
        """Starts the process, after preparing the folder."""


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Holds the lock of `path` while the block runs; the kernel releases it if the process dies.

    Waits for another process holding the lock: a held lock always has a living holder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    wait = LivingWait(f"another process has had the lock {path}")
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                wait.goes_on(None)
                time.sleep(_INTERVAL_S)
        yield
    # Closing releases the lock. The file stays: if removed, a third process could lock a new file while a second waits
    # for this one.
    finally:
        os.close(file)
