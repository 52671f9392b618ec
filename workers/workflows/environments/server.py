"""`EnvironmentServer`: the command of an environment in a sandbox, for all sessions of a worker.

The server starts with the first session, and again with the first session after its end. The end of the worker is the
end of the server: the warden of the sandbox watches the worker.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from rftd.ops import limits
from rftd.ops.errors import RolloutError
from rftd.workers.workflows.environments.address import COMMAND, PACKAGES, SERVER, EnvironmentAddress
from rftd.workers.workflows.environments.connection import EnvironmentConnection, open_socket
from rftd.workers.workflows.environments.contract import SOCKET, SOCKET_VARIABLE, STEP_VARIABLE
from rftd.workers.workflows.sandbox.registry import open_sandbox
from rftd.workers.workflows.sandbox.run_folder import WORK, RunFolder, rollout_folder
from rftd.workers.workflows.sandbox.sandbox import Isolation, Sandbox, SandboxBounds, SandboxCommand, SandboxReport

_PROGRAMS: Final = Path(__file__).with_name("programs")
_LOOK_S: Final = 0.05
"""Seconds between two attempts to connect to a starting server."""


class ServedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """The command of an environment's server, with everything given to it."""

    address: EnvironmentAddress
    command: tuple[str, ...] = ()
    folder: str | None = None
    """Folder copied for the command."""
    environ: Mapping[str, str] = {}
    isolation: Isolation = "auto"
    network: bool = False
    readable: tuple[str, ...] = ()
    bounds: SandboxBounds = SandboxBounds()
    start_s: float = 180.0
    """Seconds from the start of the command to the first connection."""
    step_s: float = 60.0
    """Seconds for the answer to a call."""

    @property
    def forks(self) -> bool:
        """True if each session has a process, so that a late answer concerns no other session."""
        return self.address.kind != COMMAND

    def prepare(self, folder: RunFolder) -> None:
        """Writes the files of the command. Blocks."""
        if self.folder is not None:
            folder.copy(Path(self.folder))
        if self.address.kind in PACKAGES:
            for name in (SERVER, f"{self.address.kind}_tasks.py"):
                folder.write(name, (_PROGRAMS / name).read_bytes())

    def sandboxed(self, folder: RunFolder) -> SandboxCommand:
        """Returns the command for a sandbox, without a bound of time: a server lives as long as the worker."""
        python = Path(self.address.python)
        # The folder of a virtual environment, and of the Python behind its link.
        homes = {str(path.parent.parent) for path in (python, python.resolve())} if self.address.python else set()
        return SandboxCommand(
            words=self.address.words(self.command),
            environ={
                # Sets of texts in one order: an episode made again must be equal.
                "PYTHONHASHSEED": "0",
                "PYTHONDONTWRITEBYTECODE": "1",
                **self.environ,
                SOCKET_VARIABLE: SOCKET,
                STEP_VARIABLE: str(self.step_s),
            },
            folder=folder,
            bounds=msgspec.structs.replace(self.bounds, wall_s=1e7),
            readable=(*self.readable, *sorted(homes)),
            network=self.network,
        )


class EnvironmentServer:
    """Opens sessions with one environment's server, from any thread."""

    def __init__(self, program: ServedProgram) -> None:
        self._program = program
        self._sandbox = open_sandbox(program.isolation, "")
        self._starting = threading.Lock()
        self._life: _ServerLife | None = None
        self._sessions = count()
        self._lives: list[_ServerLife] = []
        # At the end of the workflow's use, and of the process.
        weakref.finalize(self, _end, self._lives)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[EnvironmentConnection]:
        """Opens a session, closed after the block. Raises RolloutError if no server starts."""
        life, connection = await self._connected()
        try:
            yield connection
        finally:
            if connection.broken and not self._program.forks:
                life.stop()  # a server without an answer may never answer anybody again
            await connection.close()

    def stop(self) -> None:
        """Ends the server; a later session starts another."""
        with self._starting:
            _end(self._lives)

    def _living(self) -> _ServerLife:
        with self._starting:
            if self._life is None or self._life.ended:
                self._lives[:] = [life for life in self._lives if not life.ended]
                self._life = _ServerLife(self._program, self._sandbox)
                self._lives.append(self._life)
            return self._life

    async def _connected(self) -> tuple[_ServerLife, EnvironmentConnection]:
        """Connects to the living server; to the next one, if this one ends after it listened."""
        name = self._program.address.name
        life = self._living()
        try:
            async with asyncio.timeout(self._program.start_s):
                while True:
                    work = await asyncio.wrap_future(life.work)
                    with suppress(OSError):
                        reader, writer = await open_socket(work)
                        life.listened = True
                        break
                    if life.ended and not life.listened:
                        raise _start_error(life, name, self._program.bounds)
                    if life.ended:
                        life = self._living()
                    else:
                        await asyncio.sleep(_LOOK_S)
        except TimeoutError as error:
            life.stop()
            problem = f"the server of environment {name!r} did not listen within {self._program.start_s:g} s"
            raise RolloutError(problem, field="start_s", fix="correct the command, or raise start_s") from error
        session = str(next(self._sessions))
        connection = EnvironmentConnection(reader, writer, session=session, name=name, step_s=self._program.step_s)
        return life, connection


class _ServerLife:
    """One life of a server, on a thread with an event loop: sessions come from other loops, or none outlives it."""

    def __init__(self, program: ServedProgram, sandbox: Sandbox) -> None:
        self.work: Future[Path] = Future()
        """The folder of the command, once written."""
        self.report: Future[SandboxReport] = Future()
        self.listened = False
        """True after the first connection."""
        self._program = program
        self._sandbox = sandbox
        self._loop = asyncio.new_event_loop()
        self._serving: asyncio.Task[None] | None = None
        self._stopped = False
        threading.Thread(target=self._run, name="environment", daemon=True).start()

    @property
    def ended(self) -> bool:
        """True after the end of the command, and after `stop`."""
        return self._stopped or self.report.done()

    def stop(self) -> None:
        """Ends the command with all its processes; does not wait."""
        self._stopped = True
        with suppress(RuntimeError):  # the loop is closed: the command has ended
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._serving is not None:
            self._serving.cancel()

    def _run(self) -> None:
        try:
            self._serving = self._loop.create_task(self._serve())
            self._loop.run_until_complete(self._serving)
        except BaseException as error:
            cause = RolloutError("the server was ended") if isinstance(error, asyncio.CancelledError) else error
            for future in (self.work, self.report):
                if not future.done():
                    future.set_exception(cause)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _serve(self) -> None:
        if self._stopped:
            raise asyncio.CancelledError
        async with rollout_folder() as folder:
            await asyncio.to_thread(self._program.prepare, folder)
            self.work.set_result(folder.path / WORK)
            self.report.set_result(await self._sandbox.run(self._program.sandboxed(folder)))


def _end(lives: Sequence[_ServerLife]) -> None:
    for life in lives:
        life.stop()


def _start_error(life: _ServerLife, name: str, bounds: SandboxBounds) -> RolloutError:
    """Returns the reason for a server ended before its first connection."""
    report = life.report
    if not report.done() or report.exception() is not None:
        cause = report.exception() if report.done() else None
        return cause if isinstance(cause, RolloutError) else RolloutError(f"the server of {name!r} ended: {cause}")
    try:
        report.result().check(f"the server of environment {name!r}", bounds)
    except RolloutError as error:
        if "No module named" in error.what:
            error.fix = "pip install 'rftd[environments]', or name the Python with the package: ?python=/PATH/python"
        return error
    return RolloutError(f"the server of environment {name!r} ended before it listened", fix="correct the command")


def checked_bounds(bounds: SandboxBounds) -> SandboxBounds:
    """Returns the bounds, with the memory of a server and of its sessions where the file names none."""
    if bounds == SandboxBounds():
        return msgspec.structs.replace(bounds, memory_mib=4096, processes=1024, output_mib=limits.MIB)
    return bounds
